"""Reads the volumes of the storage proxies over HTTP."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ai.backend.common.errors import BackendError
from ai.backend.common.folders import parse_host
from ai.backend.manager.storage_proxy import StorageProxies
from ai.backend.manager.volumes.model import Volume, VolumeHealth, VolumeMount

log = logging.getLogger(__name__)

_VOLUMES_TIMEOUT_S = 10.0


class StorageProxyVolumes:
    """Implements :class:`ai.backend.manager.volumes.gateway.VolumeGateway`."""

    def __init__(self, proxies: StorageProxies) -> None:
        self._proxies = proxies
        self._cached: tuple[float, dict[str, Volume]] | None = None

    async def default_host(self) -> str | None:
        return (await self._proxies.settings()).default_host or next(iter(sorted(await self.volumes())), None)

    async def blocked(self) -> Mapping[str, frozenset[str]]:
        return (await self._proxies.settings()).blocked

    async def volumes(self) -> Mapping[str, Volume]:
        if self._cached is None or time.monotonic() - self._cached[0] > _VOLUMES_TIMEOUT_S:
            proxies = (await self._proxies.settings()).proxies
            replies = await asyncio.gather(*(self._volumes_of(proxy_name) for proxy_name in proxies))
            volumes = {volume.host: volume for reply in replies for volume in reply or ()}
            if None in replies or not proxies:
                return volumes  # not cached: a proxy that is silent now may answer the next time
            self._cached = time.monotonic(), volumes
        return self._cached[1]

    async def _volumes_of(self, proxy: str) -> list[Volume] | None:
        try:
            reply = await self._proxies.ask(proxy, "GET", "/volumes")
        except BackendError as e:
            log.warning("cannot list the volumes of the storage proxy %s: %s", proxy, e)
            return None
        return [
            Volume(
                host=f"{proxy}:{description['name']}",
                backend=str(description.get("backend", "")),
                capabilities=tuple(description.get("capabilities") or ()),
                path=str(description.get("path", "")),
                fsprefix=str(description.get("fsprefix", ".")),
            )
            for description in reply.get("volumes", ())
        ]

    async def volume_health(self, host: str) -> VolumeHealth:
        reply = await self._get(host, "/volume/hwinfo")
        return VolumeHealth(
            status=str(reply["status"]),
            status_info=reply.get("status_info"),
            metadata=dict(reply.get("metadata") or {}),
        )

    async def volume_usage(self, host: str) -> Mapping[str, int]:
        reply = await self._get(host, "/folder/fs-usage")
        return {"capacity_bytes": int(reply["capacity_bytes"]), "used_bytes": int(reply["used_bytes"])}

    async def volume_metric(self, host: str) -> Mapping[str, float]:
        return dict((await self._get(host, "/volume/performance-metric"))["metric"])

    async def mounts(self) -> Mapping[str, Sequence[VolumeMount]]:
        field_names = VolumeMount.__struct_fields__
        mounts: dict[str, Sequence[VolumeMount]] = {}
        for proxy in (await self._proxies.settings()).proxies:
            try:
                rows = (await self._proxies.ask(proxy, "GET", "/volume/mounts"))["mounts"]
            except BackendError as e:
                log.warning("cannot list the mounts of the storage proxy %s: %s", proxy, e)
                continue
            mounts[proxy] = [
                VolumeMount(**{field_name: str(row.get(field_name, "")) for field_name in field_names}) for row in rows
            ]
        return mounts

    async def _get(self, host: str, path: str) -> dict[str, Any]:
        proxy, volume = parse_host(host)
        return await self._proxies.ask(proxy, "GET", path, {"volume": volume})
