"""The tags that a scan of a registry visits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from ai.backend.manager.images.model import ScannedImage

MAX_TAGS = 200_000


class Tag(NamedTuple):
    """A tag of a registry; ``read`` fetches its images, one per architecture. Raises Unreadable or BackendError."""

    name: str
    read: Callable[[], Awaitable[Sequence[ScannedImage]]]
