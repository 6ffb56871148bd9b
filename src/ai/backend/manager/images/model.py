"""Defines container registries and their images (spec 03-01, 03-02, 03-09)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import TypeAlias

import msgspec

from ai.backend.common.errors import InvalidQuantity
from ai.backend.common.ids import AgentId
from ai.backend.common.images import MIN_RESOURCE_PREFIX
from ai.backend.common.slots import ResourceSlot


class ContainerRegistryType(StrEnum):
    """Names the type of a registry, as in ``config/docker/registry/<name>/type``."""

    DOCKER = "docker"
    HARBOR2 = "harbor2"


class AutoPull(StrEnum):
    """Names the condition under which an agent fetches an image (``config/docker/image/auto_pull``)."""

    DIGEST = "digest"
    """The image is fetched if the agent lacks it or has another digest than the last scan."""
    TAG = "tag"
    """The image is fetched only if the agent lacks it."""
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRegistry:
    """Describes a registry of the shared configuration.

    Attributes:
        name: the host in the names of its images.
        url: the address of its API.
        projects: scanned projects of a Harbor, or prefixes of repositories of another registry. Empty is all.
    """

    name: str
    url: str
    type: ContainerRegistryType = ContainerRegistryType.DOCKER
    projects: tuple[str, ...] = ()
    username: str = ""
    password: str = field(default="", repr=False)
    ssl_verify: bool = True


class ScannedImage(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the image of a tag for one architecture, as a scan reports it.

    Attributes:
        name: the full name, as in :class:`~ai.backend.common.images.ImageName`.
        digest: of the index or manifest that the tag names.
        config_digest: of the configuration, which is the id of the image in engines.
    """

    name: str
    architecture: str
    project: str = ""
    digest: str = ""
    config_digest: str = ""
    size_bytes: int = 0
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)


class RegisteredImage(ScannedImage, frozen=True, kw_only=True):
    """Describes a stored image; ``scanned_at`` is the time of the last scan that reported it."""

    registry: str
    created_at: datetime
    scanned_at: datetime


class ImageAlias(msgspec.Struct, frozen=True, kw_only=True):
    """Holds another name of an image; ``architecture`` None stands for any architecture."""

    alias: str
    image: str
    architecture: str | None = None


class ScanStep(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the scan of one tag: the images of the tag, or the reason why there are none.

    ``total`` grows while tags are being listed. ``skipped`` is the reason why an image cannot be used; ``failed`` why
    it could not be read, in which case its row stays.
    """

    done: int
    total: int
    current: str = ""
    images: tuple[ScannedImage, ...] = ()
    skipped: str | None = None
    failed: str | None = None


RegistryScan: TypeAlias = Callable[[ContainerRegistry], AsyncIterator[ScanStep]]
"""The function that yields a step for every tag of a registry, in no particular order. Raises RegistryRefused,
RegistryUnavailable.
"""


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an image that live agents have, merged over agents, or that a registry has (``is_registered``)."""

    name: str
    architecture: str
    digest: str = ""
    size_bytes: int = 0
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    agents: tuple[AgentId, ...] = ()
    is_registered: bool = False

    @property
    def min_slots(self) -> ResourceSlot:
        """Returns the minimum of each slot, from the labels ``ai.backend.resource.min.<slot>`` (spec 03-05).

        A label that is no quantity is left out: no session uses its image, which is listed among others.
        """
        minimum_amounts: dict[str, Decimal] = {}
        for label, amount_text in self.labels.items():
            if label.startswith(MIN_RESOURCE_PREFIX):
                name = label.removeprefix(MIN_RESOURCE_PREFIX)
                with suppress(InvalidQuantity):
                    minimum_amounts[name] = ResourceSlot.parse({name: amount_text})[name]
        return ResourceSlot(minimum_amounts)
