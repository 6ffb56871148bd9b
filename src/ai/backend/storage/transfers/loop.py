"""Removes abandoned uploads."""

from __future__ import annotations

import asyncio
import logging
import time

from ai.backend.storage.transfers.uploads import Uploads
from ai.backend.storage.volumes.registry import Volumes

log = logging.getLogger(__name__)
_PERIOD_S = 600.0


async def expire_uploads(volumes: Volumes, uploads: Uploads, *, after_s: float) -> None:
    """Removes expired uploads of all volumes periodically, until cancelled."""
    while True:
        for volume in volumes:
            try:
                removed = await uploads.expire(volume, time.time() - after_s)
            except Exception:
                log.exception("cannot expire the uploads of the volume %s", volume.name)
            else:
                if removed:
                    log.info("removed %d expired uploads on the volume %s", removed, volume.name)
        await asyncio.sleep(min(_PERIOD_S, after_s))
