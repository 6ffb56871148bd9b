"""Finds and loads the built files of the console when a browser requests them, and notices a newer build."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from ai.backend.infra.console import places
from ai.backend.infra.console.places import CONSOLE_NAME, cache_folder, find_bundle
from ai.backend.infra.console.progress import Progress, read_progress
from ai.backend.web.pages.bundle import Bundle, BundleDamaged, load_bundle

log = logging.getLogger(__name__)
_CHECK_INTERVAL_S = 1.0


class Console:
    """Loads the console's bundle at the first request, and keeps it in memory.

    ``folder``: a built console that a setting names; None for the packaged one, or that of this checkout's sources.
    """

    def __init__(self, folder: Path | None = None, *, cache: Path | None = None) -> None:
        self._folder = folder
        self._cache = cache
        self._loaded: tuple[Path, Bundle] | None = None
        self._next_check = 0.0
        self._lock = asyncio.Lock()

    async def bundle(self) -> Bundle | None:
        """Returns the console's bundle.

        Returns None if the bundle is not built. Looks for another one at most once a second.
        """
        async with self._lock:
            if time.monotonic() >= self._next_check:
                await self._load_if_changed()
                self._next_check = time.monotonic() + _CHECK_INTERVAL_S
        return self._loaded[1] if self._loaded is not None else None

    async def asset_bundle(self) -> Bundle | None:
        """Returns the bundle in memory. Looks for a bundle only if there is none in memory."""
        return self._loaded[1] if self._loaded is not None else await self.bundle()

    @property
    def can_be_built(self) -> bool:
        """Returns True if this installation has the console's sources."""
        return places.source_folder() is not None

    async def progress(self) -> Progress | None:
        """Returns the last step of the last build of the console, from this user's cache folder; None if unknown."""
        return await asyncio.to_thread(read_progress, self._cache or cache_folder())

    async def _load_if_changed(self) -> None:
        folder = self._folder or await asyncio.to_thread(self._find_bundle_folder)
        if folder is None or (self._loaded is not None and self._loaded[0] == folder):
            return  # what is served stays until its successor is there
        try:
            self._loaded = folder, await asyncio.to_thread(load_bundle, folder)
        except BundleDamaged as e:
            log.warning("the console is not served: %s", e)
            return
        log.info("serving the console of %s, digest %s", folder, self._loaded[1].digest)

    def _find_bundle_folder(self) -> Path | None:
        bundle = find_bundle(cache=self._cache)
        return bundle / CONSOLE_NAME if bundle is not None else None
