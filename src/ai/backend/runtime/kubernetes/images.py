"""Reads the images of a node from its object in the API."""

from __future__ import annotations

import msgspec

from ai.backend.plugin.runtime import RuntimeImage

_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


class _ContainerImage(msgspec.Struct, rename="camel"):
    """Holds one image in a node's status: the image's names and size.

    ``names`` is null if another image has its tags now.
    """

    names: list[str] | None = None
    size_bytes: int = 0


class _NodeInfo(msgspec.Struct):
    architecture: str = ""


class _NodeStatus(msgspec.Struct, rename="camel"):
    node_info: _NodeInfo = msgspec.field(default_factory=_NodeInfo)
    images: list[_ContainerImage] | None = None


class _Node(msgspec.Struct):
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


def images_of(node: bytes) -> list[RuntimeImage]:
    """Returns the tagged images that a node reports in its status, which lists the node's 50 largest images only.

    Takes a Node as JSON; raises msgspec.ValidationError for anything else.
    """
    status = msgspec.json.decode(node, type=_Node).status
    architecture = _ARCHITECTURES.get(status.node_info.architecture, status.node_info.architecture)
    images: list[RuntimeImage] = []
    for image in status.images or ():
        tagged_names = [name for name in image.names or () if "@" not in name]
        digests = [name.partition("@")[2] for name in image.names or () if "@" in name]
        if tagged_names:
            images.append(
                RuntimeImage(
                    name=tagged_names[0],
                    architecture=architecture,
                    digest=digests[0] if digests else "",
                    size_bytes=image.size_bytes,
                    aliases=tuple(tagged_names[1:]),
                )
            )
    return images
