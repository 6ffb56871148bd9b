"""The storage proxies over HTTP, as ``docs/reference/storage-proxy-api.md`` says.

Which there are is shared configuration (peer facts 4.5): ``volumes/proxies/<name>/{manager_api,client_api,secret,
ssl_verify}``, ``volumes/default_host`` and ``volumes/blocked/<proxy:volume>``, which lists what nobody may do there. It
is read again after some seconds, so a change needs no restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from ai.backend.common.errors import (
    AuthenticationFailed,
    BackendError,
    FolderNotFound,
    Forbidden,
    NotFound,
    QuotaScopeNotFound,
    Unavailable,
    VolumeNotFound,
    from_wire,
)
from ai.backend.common.folders import FolderKey, parse_host
from ai.backend.common.volume_paths import QuotaScopeId
from ai.backend.infra.config_store import ConfigStore
from ai.backend.infra.retry import Backoff
from ai.backend.manager.folders.gateway import Progress
from ai.backend.manager.folders.model import FileInfo, FolderUsage, ScopeUsage, Ticket
from ai.backend.manager.volumes.client import _VOLUMES_S
from ai.backend.manager.volumes.model import Volume, VolumeHealth, VolumeMount

log = logging.getLogger(__name__)

PROXIES = "volumes/proxies"
DEFAULT_HOST = "volumes/default_host"
BLOCKED = "volumes/blocked/"
TOKEN_HEADER = "X-BackendAI-Storage-Auth-Token"
_CONFIG_S = 2.0
_TIMEOUT = aiohttp.ClientTimeout(total=30.0, sock_connect=5.0)
_FIRST_POLL_S, _LAST_POLL_S = 0.05, 2.0


@dataclass(frozen=True, slots=True)
class _Proxy:
    name: str
    manager_api: str
    client_api: str
    secret: str
    ssl_verify: bool


@dataclass(frozen=True, slots=True)
class _Settings:
    proxies: Mapping[str, _Proxy]
    default_host: str | None
    blocked: Mapping[str, frozenset[str]]


class StorageProxies:
    """Implements :class:`ai.backend.manager.folders.gateway.StorageGateway`."""

    def __init__(self, config: ConfigStore) -> None:
        self._config = config
        self._http: aiohttp.ClientSession | None = None
        self._known: tuple[float, _Settings] | None = None
        self._volumes: tuple[float, dict[str, Volume]] | None = None

    async def close(self) -> None:
        """Safe twice."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    # ---- where they are ----

    async def _settings(self) -> _Settings:
        if self._known is None or time.monotonic() - self._known[0] > _CONFIG_S:
            entries = await self._config.get_prefix("volumes")
            tree: dict[str, dict[str, str]] = {}
            for path, value in entries.items():
                name, _, key = path.removeprefix(PROXIES + "/").partition("/")
                if path.startswith(PROXIES + "/") and key:
                    tree.setdefault(name, {})[key] = value
            proxies = {
                name: _Proxy(
                    name=name,
                    manager_api=keys["manager_api"].rstrip("/"),
                    client_api=keys.get("client_api", "").rstrip("/"),
                    secret=keys.get("secret", ""),
                    ssl_verify=keys.get("ssl_verify", "true").lower() not in ("false", "0", "no"),
                )
                for name, keys in tree.items()
                if keys.get("manager_api")
            }
            blocked = {
                path.removeprefix(BLOCKED): frozenset(value.replace(",", " ").split())
                for path, value in entries.items()
                if path.startswith(BLOCKED)
            }
            self._known = time.monotonic(), _Settings(proxies, entries.get(DEFAULT_HOST), blocked)
        return self._known[1]

    async def default_host(self) -> str | None:
        return (await self._settings()).default_host or next(iter(sorted(await self.volumes())), None)

    async def volumes(self) -> Mapping[str, Volume]:
        if self._volumes is None or time.monotonic() - self._volumes[0] > _VOLUMES_S:
            proxies = (await self._settings()).proxies
            told = await asyncio.gather(*(self._volumes_of(p) for p in proxies.values()))
            found = {volume.host: volume for volumes in told for volume in volumes or ()}
            if None in told or not proxies:
                return found  # who is silent now may answer the next time
            self._volumes = time.monotonic(), found
        return self._volumes[1]

    async def _volumes_of(self, proxy: _Proxy) -> list[Volume] | None:
        try:
            answer = await self._ask(proxy, "GET", "/volumes", {})
        except BackendError as e:
            log.warning("the storage proxy %s does not tell its volumes: %s", proxy.name, e)
            return None
        return [
            Volume(
                host=f"{proxy.name}:{v['name']}",
                backend=str(v.get("backend", "")),
                capabilities=tuple(v.get("capabilities") or ()),
                path=str(v.get("path", "")),
                fsprefix=str(v.get("fsprefix", ".")),
            )
            for v in answer.get("volumes", ())
        ]

    # ---- asking ----

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None or self._http.closed:
            self._http = aiohttp.ClientSession(timeout=_TIMEOUT)
        return self._http

    async def _proxy(self, name: str) -> _Proxy:
        proxies = (await self._settings()).proxies
        if name not in proxies:
            raise VolumeNotFound(f"There is no storage proxy {name[:64]!r}.")
        return proxies[name]

    async def names(self) -> Sequence[str]:
        """Of all proxies, whether they answer or not; first the one that has the default volume."""
        settings = await self._settings()
        default = (settings.default_host or "").partition(":")[0]
        return sorted(settings.proxies, key=lambda name: (name != default, name))

    async def ask(
        self, proxy: str, method: str, path: str, body: Any = None, *, timeout: aiohttp.ClientTimeout | None = None
    ) -> dict[str, Any]:
        """One call of a proxy's manager-facing API; ``body`` is what msgspec can encode.

        Raises:
            BackendError: as the proxy says, or Unavailable.
        """
        return await self._ask(await self._proxy(proxy), method, path, {} if body is None else body, timeout)

    async def _ask(
        self,
        proxy: _Proxy,
        method: str,
        path: str,
        parameters: Any,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> dict[str, Any]:
        try:
            async with self._session().request(
                method,
                proxy.manager_api + path,
                timeout=timeout or _TIMEOUT,
                data=msgspec.json.encode(parameters),
                headers={TOKEN_HEADER: proxy.secret, "Content-Type": "application/json"},
                ssl=proxy.ssl_verify,
                allow_redirects=False,
            ) as response:
                raw = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as e:
            why = str(e) or type(e).__name__
            raise Unavailable(f"The storage proxy {proxy.name} does not answer: {why}") from e
        return _answer(proxy.name, response.status, raw)

    async def _call(self, folder: FolderKey, method: str, path: str, **parameters: Any) -> dict[str, Any]:
        place = {"volume": folder.volume, "vfid": folder.vfid}
        return await self._ask(await self._proxy(folder.proxy), method, path, {**place, **parameters})

    # ---- volumes and quota scopes ----

    async def blocked(self) -> Mapping[str, frozenset[str]]:
        return (await self._settings()).blocked

    async def _volume(self, host: str, method: str, path: str, **parameters: Any) -> dict[str, Any]:
        proxy, volume = parse_host(host)
        return await self._ask(await self._proxy(proxy), method, path, {"volume": volume, **parameters})

    async def volume_health(self, host: str) -> VolumeHealth:
        answer = await self._volume(host, "GET", "/volume/hwinfo")
        return VolumeHealth(
            status=str(answer["status"]),
            status_info=answer.get("status_info"),
            metadata=dict(answer.get("metadata") or {}),
        )

    async def volume_usage(self, host: str) -> Mapping[str, int]:
        answer = await self._volume(host, "GET", "/folder/fs-usage")
        return {"capacity_bytes": int(answer["capacity_bytes"]), "used_bytes": int(answer["used_bytes"])}

    async def volume_metric(self, host: str) -> Mapping[str, float]:
        return dict((await self._volume(host, "GET", "/volume/performance-metric"))["metric"])

    async def mounts(self) -> Mapping[str, Sequence[VolumeMount]]:
        names = VolumeMount.__slots__
        found: dict[str, Sequence[VolumeMount]] = {}
        for proxy in (await self._settings()).proxies.values():
            try:
                told = (await self._ask(proxy, "GET", "/volume/mounts", {}))["mounts"]
            except BackendError as e:
                log.warning("the storage proxy %s does not tell its mounts: %s", proxy.name, e)
                continue
            found[proxy.name] = [VolumeMount(**{name: str(row.get(name, "")) for name in names}) for row in told]
        return found

    async def scope_usage(self, host: str, scope: QuotaScopeId) -> ScopeUsage:
        answer = await self._volume(host, "GET", "/quota-scope", qsid=str(scope))
        limit = int(answer["limit_bytes"])
        return ScopeUsage(
            used_bytes=int(answer["used_bytes"]),
            limit_bytes=limit if limit >= 0 else None,
            enforcement=str(answer.get("enforcement") or "soft"),
            file_count=answer.get("file_count"),
        )

    async def set_scope_limit(self, host: str, scope: QuotaScopeId, limit_bytes: int | None) -> None:
        if limit_bytes is not None:
            options = {"limit_bytes": limit_bytes}
            await self._volume(host, "POST", "/quota-scope", qsid=str(scope), options=options)
            return
        with contextlib.suppress(QuotaScopeNotFound):
            await self._volume(host, "DELETE", "/quota-scope/quota", qsid=str(scope))

    # ---- folders ----

    async def create_folder(self, folder: FolderKey) -> None:
        await self._call(folder, "POST", "/folder/create")

    async def delete_folder(self, folder: FolderKey) -> None:
        await self._call(folder, "POST", "/folder/delete")

    async def clone_folder(self, source: FolderKey, target: FolderKey, progress: Progress | None = None) -> None:
        proxy = await self._proxy(target.proxy)
        wanted = {
            "src_volume": source.volume,
            "src_vfid": source.vfid,
            "dst_volume": target.volume,
            "dst_vfid": target.vfid,
        }
        poll = Backoff(_FIRST_POLL_S, _LAST_POLL_S, factor=1.5)
        task_id = (await self._ask(proxy, "POST", "/folder/clone", wanted))["bgtask_id"]
        while True:
            try:
                task = await self._ask(proxy, "GET", "/task", {"task_id": task_id})
            except (FolderNotFound, VolumeNotFound):
                raise
            except NotFound:  # the proxy was restarted; it has taken the clone up again
                task_id = (await self._ask(proxy, "POST", "/folder/clone", wanted))["bgtask_id"]
                continue
            if task["status"] == "done":
                return
            if task["status"] != "running":
                error = task.get("error") or {}
                raise _problem(error, f"The clone was {task['status']}: {task.get('message') or 'no reason is known'}.")
            if progress is not None:
                await progress(float(task.get("current") or 0), float(task.get("total") or 0))
            await poll.wait()

    async def mount_path(self, folder: FolderKey, subpath: str = "") -> str:
        answer = await self._call(folder, "GET", "/folder/mount", subpath=subpath or ".")
        return str(answer["path"])

    async def usage(self, folder: FolderKey) -> FolderUsage:
        answer = await self._call(folder, "GET", "/folder/usage")
        return FolderUsage(files=int(answer["file_count"]), bytes=int(answer["used_bytes"]))

    # ---- files ----

    async def list_files(
        self, folder: FolderKey, path: str, *, limit: int = 1000, cursor: str | None = None
    ) -> tuple[Sequence[FileInfo], str | None]:
        answer = await self._call(folder, "POST", "/folder/file/list", relpath=path, limit=limit, cursor=cursor)
        return [_file_info(item) for item in answer["items"]], answer.get("cursor")

    async def make_directories(
        self, folder: FolderKey, paths: Sequence[str], *, parents: bool, exist_ok: bool
    ) -> Mapping[str, str | None]:
        answer = await self._call(
            folder, "POST", "/folder/file/mkdir", relpath=list(paths), parents=parents, exist_ok=exist_ok
        )
        results = answer["results"]
        made: dict[str, str | None] = {str(r["item"]): None for r in results.get("success", ())}
        return made | {str(r["item"]): str(r.get("msg") or "it cannot be made") for r in results.get("failed", ())}

    async def rename_file(self, folder: FolderKey, path: str, new_name: str) -> None:
        await self._call(folder, "POST", "/folder/file/rename", relpath=path, new_name=new_name)

    async def move_file(self, folder: FolderKey, source: str, target: str) -> None:
        await self._call(folder, "POST", "/folder/file/move", src_relpath=source, dst_relpath=target)

    async def delete_files(self, folder: FolderKey, paths: Sequence[str], *, recursive: bool) -> None:
        await self._call(folder, "POST", "/folder/file/delete", relpaths=list(paths), recursive=recursive)

    async def upload_ticket(self, folder: FolderKey, path: str, size: int) -> Ticket:
        return await self._ticket(folder, "/folder/file/upload", relpath=path, size=size)

    async def download_ticket(self, folder: FolderKey, path: str, *, archive: bool) -> Ticket:
        return await self._ticket(folder, "/folder/file/download", relpath=path, archive=archive)

    async def _ticket(self, folder: FolderKey, path: str, **parameters: Any) -> Ticket:
        answer = await self._call(folder, "POST", path, **parameters)
        url, base = str(answer["url"]), (await self._proxy(folder.proxy)).client_api
        return Ticket(url=f"{base}/{url.rpartition('/')[2]}" if base else url, token=str(answer["token"]))


def _file_info(item: Mapping[str, Any]) -> FileInfo:
    told = item["stat"]
    return FileInfo(
        name=str(item["name"]),
        is_directory=item["type"] == "DIRECTORY",
        size=int(told["size"]),
        mode=stat.filemode(int(told["mode"])),
        created=float(told["created"]),
        modified=float(told["modified"]),
    )


def _problem(document: Mapping[str, Any], otherwise: str) -> BackendError:
    code = str(document.get("type", "")).rpartition("/")[2]
    message = str(document.get("detail") or document.get("title") or otherwise)
    data = document.get("data")
    return from_wire(code or Unavailable.code, message, data if isinstance(data, Mapping) else None)


def _answer(name: str, status: int, raw: bytes) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(raw) if raw else {}
    except msgspec.DecodeError:
        decoded = None
    if not isinstance(decoded, dict):
        raise Unavailable(f"The storage proxy {name} answers {status} with something that is no JSON object.")
    if status < 400 or "results" in decoded:
        return decoded
    if status >= 500 and not decoded.get("type"):
        raise Unavailable(f"The storage proxy {name} answers {status}.")
    error = _problem(decoded, f"The storage proxy {name} answers {status}.")
    if type(error) in (AuthenticationFailed, Forbidden):  # what else is refused has a code of its own
        raise Unavailable(f"The storage proxy {name} does not take our secret.")
    raise error
