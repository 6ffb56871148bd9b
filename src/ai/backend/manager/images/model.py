"""Images that container registries have, and the registries themselves (spec 03-01, 03-02, 03-09)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from ai.backend.common.ids import AgentId
from ai.backend.common.images import ImageName
from ai.backend.common.slots import ResourceSlot


class ContainerRegistryType(StrEnum):
    """As in ``config/docker/registry/<name>/type``."""

    DOCKER = "docker"
    HARBOR2 = "harbor2"


class AutoPull(StrEnum):
    """When an agent fetches the image of a session (``config/docker/image/auto_pull``)."""

    DIGEST = "digest"
    """Where it lacks it, or has another one than the registry had at the last scan."""
    TAG = "tag"
    """Where it lacks it."""
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRegistry:
    """A registry as the shared configuration names it.

    Attributes:
        name: the host in the names of its images.
        url: where its API is.
        projects: of a Harbor those that are scanned; of another registry prefixes of repositories. Empty is all.
    """

    name: str
    url: str
    type: ContainerRegistryType = ContainerRegistryType.DOCKER
    projects: tuple[str, ...] = ()
    username: str = ""
    password: str = field(default="", repr=False)
    ssl_verify: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredImage:
    """One tag of a registry for one architecture.

    Attributes:
        name: the full name, as in :class:`~ai.backend.common.images.ImageName`.
        digest: what the tag named at the last scan: an index, or the manifest itself.
        config_digest: of the image's configuration, which is the id that engines give it.
        scanned_at: when a scan has last met it.
    """

    name: str
    architecture: str
    registry: str
    project: str = ""
    digest: str = ""
    config_digest: str = ""
    size_bytes: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    created_at: datetime
    scanned_at: datetime

    @property
    def repository(self) -> str:
        return ImageName.parse(self.name).repository


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundImage:
    """What a scan finds; see :class:`RegisteredImage`."""

    name: str
    architecture: str
    project: str = ""
    digest: str = ""
    config_digest: str = ""
    size_bytes: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageAlias:
    """Another name of an image. ``architecture`` None: whichever there is."""

    alias: str
    image: str
    architecture: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanStep:
    """What one step of a scan brings.

    ``total`` grows while tags are still being listed. ``skipped`` tells why an image cannot be used; ``failed`` why
    nothing could be learned of it, so that what is known of it stays.
    """

    done: int
    total: int
    current: str = ""
    found: tuple[FoundImage, ...] = ()
    skipped: str | None = None
    failed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image that some living agent can run, merged over agents, or that a registry has (``is_registered``)."""

    name: str
    architecture: str
    digest: str = ""
    size_bytes: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    agents: tuple[AgentId, ...] = ()
    is_registered: bool = False

    @property
    def min_slots(self) -> ResourceSlot:
        """From the labels ``ai.backend.resource.min.<slot>`` (spec 03-05)."""
        prefix = "ai.backend.resource.min."
        return ResourceSlot.parse({k.removeprefix(prefix): v for k, v in self.labels.items() if k.startswith(prefix)})
