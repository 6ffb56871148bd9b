"""Forget uploads that nobody goes on with."""

from __future__ import annotations

import asyncio
import logging
import time

from ai.backend.storage.transfers.uploads import Uploads
from ai.backend.storage.volumes.registry import Volumes

log = logging.getLogger(__name__)
_PERIOD_S = 600.0


async def expire_uploads(volumes: Volumes, uploads: Uploads, *, after_s: float) -> None:
    """Look at every volume, again and again; runs until it is cancelled."""
    while True:
        for volume in volumes:
            try:
                gone = await uploads.expire(volume, time.time() - after_s)
            except Exception:
                log.exception("the uploads of the volume %s could not be looked at", volume.name)
            else:
                if gone:
                    log.info("forgot %d uploads on the volume %s", gone, volume.name)
        await asyncio.sleep(min(_PERIOD_S, after_s))
