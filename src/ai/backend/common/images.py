"""Parses names and labels of container images (spec 03-05 "Metadata Labels")."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ai.backend.common.errors import InvalidInput, InvalidQuantity
from ai.backend.common.service_ports import declared_services
from ai.backend.common.slots import ResourceSlot

KERNELSPEC_VERSION = "1"
MAX_NAME_LENGTH = 512
LABEL_PREFIX = "ai.backend."
"""Labels of the platform (spec 03-05)."""
MIN_RESOURCE_PREFIX = f"{LABEL_PREFIX}resource.min."
DEFAULT_TAG = "latest"
IMAGE_ROLES = ("COMPUTE", "INFERENCE", "SYSTEM")
CUSTOMIZED_OWNER_LABEL = "ai.backend.customized-image.owner"
"""Whose image it is that was committed from a session: `user:<uuid>`. Others do not see it."""
CUSTOMIZED_NAME_LABEL = "ai.backend.customized-image.name"
_ARCHITECTURES = {"amd64": "x86_64", "x86-64": "x86_64", "arm64": "aarch64"}
_DEFAULT_LABELS = {
    "ai.backend.kernelspec": KERNELSPEC_VERSION,
    "ai.backend.role": "COMPUTE",
    "ai.backend.features": "batch query uid-match user-input",
    "ai.backend.resource.min.cpu": "1",
    "ai.backend.resource.min.mem": "64m",
}
_REGISTRY_PATTERN = re.compile(
    r"(?=.{1,255}\Z)(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
)
_PATH_PATTERN = re.compile(r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)*")
_TAG_PATTERN = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST_PATTERN = re.compile(r"[a-z0-9]+(?:[.+_-][a-z0-9]+)*:[0-9a-fA-F]{32,128}")
_ALIAS_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+-]{0,127}", re.ASCII)


def architecture_name(name: str) -> str:
    """Returns the canonical name of a processor architecture."""
    lowered = name.strip().lower()
    return _ARCHITECTURES.get(lowered, lowered)


def _split_registry(text: str) -> tuple[str, str]:
    """Splits a name into the registry, empty if there is none, and the rest."""
    registry, slash, remaining_name = text.partition("/")
    is_host = "." in registry or ":" in registry or registry == "localhost"
    return (registry, remaining_name) if slash and is_host else ("", text)


@dataclass(frozen=True, slots=True)
class ImageName:
    """The full name of an image: a registry host, empty for images of no registry, a path, and a tag, which is never
    empty."""

    registry: str
    path: str
    tag: str

    @classmethod
    def parse(cls, text: str) -> ImageName:
        """Parses ``[HOST[:PORT]/]PATH[:TAG]``. Raises InvalidInput for any other form, also for a digest.

        >>> ImageName.parse("cr.example.org:5000/stable/python:3.11")
        ImageName(registry='cr.example.org:5000', path='stable/python', tag='3.11')
        """
        registry, name_without_registry = _split_registry(text)
        path, colon, tag = name_without_registry.partition(":")
        tag = tag if colon else DEFAULT_TAG
        is_valid = len(text) <= MAX_NAME_LENGTH and _PATH_PATTERN.fullmatch(path) and _TAG_PATTERN.fullmatch(tag)
        if not is_valid or (registry and not _REGISTRY_PATTERN.fullmatch(registry)):
            raise InvalidInput(f"{text[:128]!r} is no name of an image.", data={"image": "malformed"})
        return cls(registry, path, tag)

    @property
    def repository(self) -> str:
        """Returns the image name without its tag."""
        return f"{self.registry}/{self.path}" if self.registry else self.path

    def __str__(self) -> str:
        return f"{self.repository}:{self.tag}"


def registry_of(name: str) -> str:
    """Returns the registry in an image's name. Returns an empty text if there is no registry or the name is invalid."""
    try:
        return ImageName.parse(name).registry
    except InvalidInput:
        return ""


def is_tag(text: str) -> bool:
    return _TAG_PATTERN.fullmatch(text) is not None


def is_path(text: str) -> bool:
    """Returns True if the path is a valid repository name in a registry."""
    return len(text) <= 255 and _PATH_PATTERN.fullmatch(text) is not None


def is_digest(text: str) -> bool:
    return _DIGEST_PATTERN.fullmatch(text) is not None


def check_registry_name(name: str) -> str:
    """Checks and returns the host name of an image registry. Raises InvalidInput for an invalid name."""
    if not _REGISTRY_PATTERN.fullmatch(name):
        raise InvalidInput(f"{name[:128]!r} is no name of a registry: a host, and perhaps :PORT.")
    return name


def check_alias(alias: str) -> str:
    """Checks and returns the alias of an image. Raises InvalidInput for characters that image names do not allow."""
    if not _ALIAS_PATTERN.fullmatch(alias):
        raise InvalidInput(f"{alias[:128]!r} is no alias of an image.", data={"alias": "malformed"})
    return alias


def standard_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Returns the image's labels, completed by the defaults that apply since 24.09."""
    return {**_DEFAULT_LABELS, **labels}


def label_problem(labels: Mapping[str, str]) -> str | None:
    """Returns the reason for which sessions cannot use an image with these labels, or None if they can.

    A missing label is no problem.
    """
    kernelspec = labels.get("ai.backend.kernelspec", KERNELSPEC_VERSION)
    if kernelspec != KERNELSPEC_VERSION:
        return f"ai.backend.kernelspec is {kernelspec[:32]!r}, and only {KERNELSPEC_VERSION} is known"
    for name, label_value in labels.items():
        if name.startswith(MIN_RESOURCE_PREFIX) and (problem := _minimum_problem(name, label_value)):
            return problem
    role = labels.get("ai.backend.role", IMAGE_ROLES[0])
    if role not in IMAGE_ROLES:
        return f"ai.backend.role is {role[:32]!r}, and not one of {', '.join(IMAGE_ROLES)}"
    try:
        declared_services(labels)
    except InvalidInput as e:
        return f"its service ports are wrong: {e.message}"
    return None


def _minimum_problem(name: str, minimum_text: str) -> str | None:
    try:
        quantities = ResourceSlot.parse({name.removeprefix(MIN_RESOURCE_PREFIX): minimum_text})
    except (InvalidQuantity, InvalidInput):
        return f"{name[:64]} is {minimum_text[:32]!r}, which is no quantity"
    if any(minimum < 0 or minimum.is_infinite() for minimum in quantities.values()):
        return f"{name[:64]} is {minimum_text[:32]!r}, which no session can have"
    return None


def split_image(canonical: str) -> tuple[str, str, str]:
    """Splits an image's full name into registry, name and tag. The registry is empty for images of a node.

    >>> split_image("cr.example.org:5000/stable/python:3.11")
    ('cr.example.org:5000', 'stable/python', '3.11')
    """
    registry, name_without_registry = _split_registry(canonical)
    parent_path, _, last_part = name_without_registry.rpartition("/")
    name, _, tag = last_part.partition(":")
    return registry, f"{parent_path}/{name}" if parent_path else name, tag
