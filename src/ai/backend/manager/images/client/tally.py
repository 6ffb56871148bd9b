"""Counts the tags of a scan and ends it when the registry is down."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from ai.backend.common.errors import BackendError, NotFound, RegistryUnavailable
from ai.backend.common.images import label_problem
from ai.backend.manager.images.client.manifests import Unreadable
from ai.backend.manager.images.model import FoundImage, ScanStep

MAX_TAGS = 200_000
_GIVE_UP = 10


class Tally:
    """Counts the tags of one scan; after ``_GIVE_UP`` failures in a row the registry counts as down."""

    def __init__(self, registry: str, total: int) -> None:
        self._registry = registry
        self.total = total
        self._done = 0
        self._lost = 0

    async def count(self, name: str, reading: Awaitable[Sequence[FoundImage]]) -> ScanStep:
        """Returns the step of one tag. Raises RegistryUnavailable when the registry is down."""
        try:
            images = await reading
        except Unreadable as e:
            return self._step(name, skipped=str(e))
        except NotFound:
            return self._step(name, failed="it has vanished")
        except RegistryUnavailable as e:
            self._lost += 1
            if self._lost >= _GIVE_UP:
                raise
            self._done += 1
            return ScanStep(done=self._done, total=self.total, current=name, failed=e.message)
        except BackendError as e:
            return self._step(name, failed=e.message)
        usable = [image for image in images if label_problem(image.labels) is None]
        problems = [problem for image in images if (problem := label_problem(image.labels))]
        return self._step(name, tuple(usable), skipped=problems[0] if problems and not usable else None)

    def _step(
        self, name: str, found: tuple[FoundImage, ...] = (), *, skipped: str | None = None, failed: str | None = None
    ) -> ScanStep:
        self._lost = 0
        self._done += 1
        return ScanStep(done=self._done, total=self.total, current=name, found=found, skipped=skipped, failed=failed)
