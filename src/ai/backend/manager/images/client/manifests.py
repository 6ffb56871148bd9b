"""Reads manifests and configurations of images from untrusted bytes, without I/O.

They follow Docker's schema 2 or the OCI image specification, each as an image or as an index of images.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

import msgspec

from ai.backend.common.images import architecture_name, is_digest
from ai.backend.manager.images.model import ScannedImage

MAX_TAGS = 200_000
_INDEX_TYPES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFEST_TYPES = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_CONFIG_TYPES = ("application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json")
T = TypeVar("T")
ACCEPTED_TYPES = ", ".join((*_INDEX_TYPES, *_MANIFEST_TYPES))
MAX_MANIFEST_BYTES = 4 << 20
MAX_LABELS_LENGTH = 1 << 18
_MAX_IMAGE_BYTES = 1 << 50


class UnreadableImage(Exception):
    """Raised for an image that sessions cannot use; the message is the reason."""


class IndexEntry(msgspec.Struct, frozen=True):
    digest: str
    architecture: str


class Manifest(msgspec.Struct, frozen=True):
    config_digest: str
    size_bytes: int


class _Descriptor(msgspec.Struct):
    digest: str = ""
    size: int = 0
    mediaType: str = ""  # noqa: N815  # the wire's name
    platform: dict[str, Any] | None = None


class _ManifestDocument(msgspec.Struct):
    schemaVersion: int = 0  # noqa: N815  # the wire's name
    mediaType: str = ""  # noqa: N815  # the wire's name
    manifests: list[_Descriptor] | None = None
    config: _Descriptor | None = None
    layers: list[_Descriptor] | None = None


class _ContainerConfig(msgspec.Struct):
    Labels: dict[str, Any] | None = None


class _ImageConfig(msgspec.Struct):
    architecture: str = ""
    os: str = "linux"
    config: _ContainerConfig | None = None


def digest_of(body: bytes) -> str:
    return f"sha256:{sha256(body).hexdigest()}"


def check_digest(body: bytes, digest: str) -> None:
    """Raises UnreadableImage if the content does not have the digest."""
    if digest.startswith("sha256:") and digest_of(body) != digest:
        raise UnreadableImage("the registry gives another content than it announces")


def read_manifest(body: bytes) -> Manifest | list[IndexEntry]:
    """Returns the image of a manifest, or those images of an index that run on Linux. Raises UnreadableImage."""
    document = _decode(body, _ManifestDocument, "manifest")
    if document.schemaVersion == 1:
        raise UnreadableImage("its manifest is of schema 1, which engines do not read any more")
    if document.manifests is not None:
        return _index_entries(document.manifests)
    if document.config is None or document.layers is None:
        raise UnreadableImage("its manifest has no configuration")
    if document.config.mediaType not in _CONFIG_TYPES:
        raise UnreadableImage(f"it is no image but {document.config.mediaType[:64] or 'something else'}")
    size = sum(layer.size for layer in document.layers) + document.config.size
    if not is_digest(document.config.digest) or not 0 <= size <= _MAX_IMAGE_BYTES:
        raise UnreadableImage("its manifest is not readable")
    return Manifest(document.config.digest, size)


def _decode(body: bytes, document_type: type[T], document_noun: str) -> T:
    try:
        return msgspec.json.decode(body, type=document_type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise UnreadableImage(f"its {document_noun} is not readable") from None


def _index_entries(descriptors: list[_Descriptor]) -> list[IndexEntry]:
    children = []
    for descriptor in descriptors[:256]:
        platform = descriptor.platform or {}
        architecture = platform.get("architecture")
        if platform.get("os") == "linux" and isinstance(architecture, str) and is_digest(descriptor.digest):
            children.append(IndexEntry(descriptor.digest, architecture_name(architecture)))
    if not children:
        raise UnreadableImage("it has nothing for Linux")
    # Of several variants of one architecture, engines take the one that comes first, too.
    return list({child.architecture: child for child in reversed(children)}.values())[::-1]


def read_config(body: bytes) -> tuple[str, dict[str, str]]:
    """Returns the architecture and the labels of an image's configuration. Raises UnreadableImage."""
    document = _decode(body, _ImageConfig, "configuration")
    if document.os != "linux":
        raise UnreadableImage(f"it is for {document.os[:32]}")
    labels = document.config.Labels if document.config else None
    return architecture_name(document.architecture)[:32], clean_labels(labels or {})


def clean_labels(labels: dict[str, Any]) -> dict[str, str]:
    """Returns the labels of an image whose values are texts. Raises UnreadableImage if they are too large."""
    text_labels = {key: label_value for key, label_value in labels.items() if isinstance(label_value, str)}
    if sum(len(key) + len(label_value) for key, label_value in text_labels.items()) > MAX_LABELS_LENGTH:
        raise UnreadableImage("its labels are too large")
    return text_labels


class Tag(NamedTuple):
    """Represents a tag of a registry. ``read`` fetches the images of the tag, one for each architecture.

    ``read`` raises UnreadableImage or BackendError.
    """

    name: str
    read: Callable[[], Awaitable[Sequence[ScannedImage]]]
