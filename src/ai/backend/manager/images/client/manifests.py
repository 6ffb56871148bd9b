"""What manifests and configurations of images say. Pure: from bytes that may be anything.

Read are Docker's schema 2 and the OCI image specification, each as an image or as an index of images.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec

from ai.backend.common.images import architecture_name, is_digest

_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_CONFIGS = ("application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json")
ACCEPT = ", ".join((*_INDEXES, *_MANIFESTS))
MAX_MANIFEST = 4 << 20
MAX_LABELS = 1 << 18
_MAX_SIZE = 1 << 50


class Unreadable(Exception):
    """Why this is no image that sessions can use."""


@dataclass(frozen=True, slots=True)
class Child:
    digest: str
    architecture: str


@dataclass(frozen=True, slots=True)
class Manifest:
    config_digest: str
    size_bytes: int


class _Descriptor(msgspec.Struct):
    digest: str = ""
    size: int = 0
    mediaType: str = ""  # noqa: N815  # the wire's name
    platform: dict[str, Any] | None = None


class _Document(msgspec.Struct):
    schemaVersion: int = 0  # noqa: N815  # the wire's name
    mediaType: str = ""  # noqa: N815  # the wire's name
    manifests: list[_Descriptor] | None = None
    config: _Descriptor | None = None
    layers: list[_Descriptor] | None = None


class _Inner(msgspec.Struct):
    Labels: dict[str, Any] | None = None


class _Config(msgspec.Struct):
    architecture: str = ""
    os: str = "linux"
    config: _Inner | None = None


def digest_of(body: bytes) -> str:
    return f"sha256:{sha256(body).hexdigest()}"


def check_digest(body: bytes, digest: str) -> None:
    """Raises Unreadable: the content is not what was asked for."""
    if digest.startswith("sha256:") and digest_of(body) != digest:
        raise Unreadable("the registry gives another content than it announces")


def read_manifest(body: bytes) -> Manifest | list[Child]:
    """An image, or the images of an index that Linux can run. Raises Unreadable."""
    try:
        told = msgspec.json.decode(body, type=_Document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Unreadable("its manifest is not readable") from None
    if told.schemaVersion == 1:
        raise Unreadable("its manifest is of schema 1, which engines do not read any more")
    if told.manifests is not None:
        return _children(told.manifests)
    if told.config is None or told.layers is None:
        raise Unreadable("its manifest has no configuration")
    if told.config.mediaType not in _CONFIGS:
        raise Unreadable(f"it is no image but {told.config.mediaType[:64] or 'something else'}")
    size = sum(layer.size for layer in told.layers) + told.config.size
    if not is_digest(told.config.digest) or not 0 <= size <= _MAX_SIZE:
        raise Unreadable("its manifest is not readable")
    return Manifest(told.config.digest, size)


def _children(found: list[_Descriptor]) -> list[Child]:
    children = []
    for one in found[:256]:
        platform = one.platform or {}
        architecture = platform.get("architecture")
        if platform.get("os") == "linux" and isinstance(architecture, str) and is_digest(one.digest):
            children.append(Child(one.digest, architecture_name(architecture)))
    if not children:
        raise Unreadable("it has nothing for Linux")
    # Of several variants of one architecture, engines take the one that comes first, too.
    return list({child.architecture: child for child in reversed(children)}.values())[::-1]


def read_config(body: bytes) -> tuple[str, dict[str, str]]:
    """Architecture and labels. Raises Unreadable."""
    try:
        told = msgspec.json.decode(body, type=_Config)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Unreadable("its configuration is not readable") from None
    if told.os != "linux":
        raise Unreadable(f"it is for {told.os[:32]}")
    return architecture_name(told.architecture)[:32], clean_labels((told.config and told.config.Labels) or {})


def clean_labels(labels: dict[str, Any]) -> dict[str, str]:
    """Raises Unreadable: there are too many."""
    clean = {key: text for key, text in labels.items() if isinstance(text, str)}
    if sum(len(key) + len(text) for key, text in clean.items()) > MAX_LABELS:
        raise Unreadable("its labels are too large")
    return clean
