"""Stores configuration in etcd v3 through its JSON gateway. The keys follow the published layout (peer facts 4.5)."""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from ai.backend.common.errors import BackendError, InvalidInput, Unavailable
from ai.backend.infra.config_store.memory import covers
from ai.backend.infra.config_store.store import GLOBAL, ConfigChange, ConfigScope, ScopeKind, check_key, check_value
from ai.backend.infra.retry import Backoff

log = logging.getLogger(__name__)
_FOLDER_BY_SCOPE = {ScopeKind.RESOURCE_GROUP: "sgroup", ScopeKind.NODE: "nodes/agents"}
_MAX_TXN_OPS = 60
"""etcd takes 128 operations in one level of a transaction; nested ones count with their parents."""
_MAX_KEYS = _MAX_TXN_OPS * _MAX_TXN_OPS
_RETRY_S, _RETRY_MAX_S, _RETRY_JITTER = 0.2, 2.0, 0.5
_MAX_SILENCE_S = 60.0
"""After this many seconds without a message a watch is reopened, in case its server vanished silently."""


def _to_base64(text: str) -> str:
    return b64encode(text.encode()).decode()


def _from_base64(data: str) -> str:
    return b64decode(data).decode(errors="replace")


def _range_end(prefix: str) -> str:
    """Returns the first key after all keys that begin with ``prefix``, which ends in a slash."""
    return _to_base64(prefix[:-1] + "0")  # "0" is what follows "/"


class EtcdConfigStore:
    """Stores configuration in etcd below ``/sorna/<namespace>``.

    Changes by etcd's own tools are reported like changes by this store.

    A write is on the disks of most members when it returns; ``put_many`` is one transaction (at most 3,600 keys, which
    share a revision); reads are linearizable; a watch survives restarts of etcd, and after a compaction yields the
    present values first. ``endpoints`` are ``http://host:port`` of members, tried in turn.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        namespace: str = "local",
        user: str | None = None,
        password: str | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        self._endpoints = list(endpoints)
        self._root = f"/sorna/{namespace}/"
        self._credentials = {"name": user, "password": password or ""} if user else None
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._token: str | None = None
        self._lease: str | None = None
        self._http: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def get(self, key: str, *, scopes: Sequence[ConfigScope] = (GLOBAL,)) -> str | None:
        check_key(key)
        reads = [{"request_range": {"key": _to_base64(self._path_of(scope, key))}} for scope in scopes]
        answer = await self._call("kv/txn", {"success": reads})
        results = [txn_part["response_range"].get("kvs", ()) for txn_part in answer.get("responses", ())]
        return next((_from_base64(pairs[0].get("value", "")) for pairs in reversed(results) if pairs), None)

    async def get_prefix(self, prefix: str, *, scopes: Sequence[ConfigScope] = (GLOBAL,)) -> dict[str, str]:
        reads = []
        for scope in scopes:
            key_range, below_range = self._key_ranges(scope, prefix)
            reads += [{"request_range": txn_part} for txn_part in (key_range, below_range) if txn_part is not None]
        answer = await self._call("kv/txn", {"success": reads})
        values_of_scope: dict[ConfigScope, dict[str, str]] = {scope: {} for scope in scopes}
        for txn_part in answer.get("responses", ()):
            for pair in txn_part["response_range"].get("kvs", ()):
                scope, key = self._parse_path(_from_base64(pair["key"]))
                if scope in values_of_scope and covers(prefix, key):
                    values_of_scope[scope][key] = _from_base64(pair.get("value", ""))
        values = {key: value for scope in scopes for key, value in values_of_scope[scope].items()}
        return dict(sorted(values.items()))

    async def put_many(self, values: Mapping[str, str], *, scope: ConfigScope = GLOBAL) -> int:
        checked_values = {check_key(raw_key): check_value(raw_value) for raw_key, raw_value in values.items()}
        if len(checked_values) > _MAX_KEYS:
            raise InvalidInput(f"more than {_MAX_KEYS} keys cannot be set at once", data={"keys": "too many"})
        puts: list[dict[str, Any]] = [
            {"request_put": {"key": _to_base64(self._path_of(scope, key)), "value": _to_base64(value)}}
            for key, value in checked_values.items()
        ]
        if len(puts) > _MAX_TXN_OPS:
            start_indexes = range(0, len(puts), _MAX_TXN_OPS)
            puts = [
                {"request_txn": {"success": puts[first_put : first_put + _MAX_TXN_OPS]}} for first_put in start_indexes
            ]
        answer = await self._call("kv/txn", {"success": puts})
        return int(answer["header"]["revision"])

    async def delete(self, key: str, *, scope: ConfigScope = GLOBAL, prefix: bool = False) -> int:
        if not prefix:
            check_key(key)
            answer = await self._call("kv/deleterange", {"key": _to_base64(self._path_of(scope, key))})
            return int(answer.get("deleted", 0))
        if scope == GLOBAL and not key:  # the folders of other scopes lie below it
            return sum(
                [
                    await self.delete(stored_key, scope=scope)
                    for stored_key in await self.get_prefix("", scopes=(scope,))
                ]
            )
        key_range, below_range = self._key_ranges(scope, key)
        operations = [
            {"request_delete_range": operation} for operation in (key_range, below_range) if operation is not None
        ]
        answer = await self._call("kv/txn", {"success": operations})
        return sum(
            int(operation["response_delete_range"].get("deleted", 0)) for operation in answer.get("responses", ())
        )

    async def read_tree(self, root: str) -> dict[str, str]:
        """Returns the values of all keys below ``root``, by the part of the key after ``root``.

        ``root`` ends in a slash, and is no part of this store's layout.
        """
        answer = await self._call("kv/range", {"key": _to_base64(root), "range_end": _range_end(root)})
        pairs = answer.get("kvs", ())
        return {_from_base64(pair["key"]).removeprefix(root): _from_base64(pair.get("value", "")) for pair in pairs}

    async def write_tree(
        self, root: str, values: Mapping[str, str | None], *, lease: int = 0, leased: Collection[str] = ()
    ) -> None:
        """Sets keys below ``root`` in one transaction.

        A value of None deletes a key. ``leased`` keys end with the lease. Raises InvalidInput for more than 3,600, or
        without that lease.
        """
        if len(values) > _MAX_KEYS:
            raise InvalidInput(f"more than {_MAX_KEYS} keys cannot be set at once", data={"keys": "too many"})
        operations: list[dict[str, Any]] = []
        for key, value in values.items():
            path = _to_base64(root + key)
            if value is None:
                operations.append({"request_delete_range": {"key": path}})
                continue
            lease_field = {"lease": str(lease)} if key in leased else {}
            operations.append({"request_put": {"key": path, "value": _to_base64(value), **lease_field}})
        if len(operations) > _MAX_TXN_OPS:
            start_indexes = range(0, len(operations), _MAX_TXN_OPS)
            operations = [
                {"request_txn": {"success": operations[start : start + _MAX_TXN_OPS]}} for start in start_indexes
            ]
        await self._call("kv/txn", {"success": operations})

    async def watch(self, prefix: str, *, after: int | None = None) -> AsyncIterator[ConfigChange]:
        last_revision = await self.revision() if after is None else after
        backoff = Backoff(_RETRY_S, _RETRY_MAX_S, jitter=_RETRY_JITTER)
        while True:
            try:
                async for revision, changes in self._watch_once(last_revision):
                    for change in changes:
                        if covers(prefix, change.key):
                            yield change
                    last_revision = max(last_revision, revision)
                    backoff.reset()
            except Unavailable as e:
                log.warning("the watch of %r goes on behind revision %d: %s", prefix, last_revision, e)
                await backoff.wait()

    async def revision(self) -> int:
        answer = await self._call("kv/range", {"key": _to_base64(self._root), "count_only": True})
        return int(answer["header"]["revision"])

    async def read_all(self) -> tuple[int, list[ConfigChange]]:
        answer = await self._call("kv/range", {"key": _to_base64(self._root), "range_end": _range_end(self._root)})
        changes = [self._change_of({"kv": pair}) for pair in answer.get("kvs", ())]
        return int(answer["header"]["revision"]), sorted(changes, key=lambda change: change.revision)

    async def keep(self, values: Mapping[str, str], *, ttl_s: int) -> None:
        """Stores global keys that disappear ``ttl_s`` seconds after the last call of this method.

        Each call also undoes other changes.
        """
        if self._lease is not None and not await self._renew_lease(self._lease):
            self._lease = None
        if self._lease is None:
            lease_answer = await self._call("lease/grant", {"TTL": str(ttl_s)})
            self._lease = str(lease_answer["ID"])
        value_of_path = {
            _to_base64(self._path_of(GLOBAL, check_key(key))): _to_base64(value) for key, value in values.items()
        }
        conditions: list[dict[str, Any]] = [
            {"key": path, "target": "VALUE", "value": encoded_value} for path, encoded_value in value_of_path.items()
        ]
        conditions += [{"key": path, "target": "LEASE", "lease": self._lease} for path in value_of_path]
        puts = [
            {"request_put": {"key": path, "value": encoded_value, "lease": self._lease}}
            for path, encoded_value in value_of_path.items()
        ]
        await self._call("kv/txn", {"compare": conditions, "failure": puts})

    async def hold_lease(self, lease: int, ttl_s: int) -> bool:
        """Renews the lease of this number, so that it ends ``ttl_s`` seconds after the last such call of any process.

        Returns True if the lease had ended, and its keys with it.
        """
        if await self._renew_lease(str(lease)):
            return False
        try:
            await self._call("lease/grant", {"ID": str(lease), "TTL": str(ttl_s)})
        except InvalidInput:  # another process has made it meanwhile
            if not await self._renew_lease(str(lease)):
                raise
        return True

    async def _renew_lease(self, lease: str) -> bool:
        answer = await self._call("lease/keepalive", {"ID": lease})
        return int(answer.get("result", {}).get("TTL", 0)) > 0

    def _folder_of(self, scope: ConfigScope) -> str:
        return (
            self._root
            if scope.kind is ScopeKind.GLOBAL
            else f"{self._root}{_FOLDER_BY_SCOPE[scope.kind]}/{scope.name}/"
        )

    def _path_of(self, scope: ConfigScope, key: str) -> str:
        if scope.kind is ScopeKind.GLOBAL and any(key.startswith(f"{name}/") for name in _FOLDER_BY_SCOPE.values()):
            raise InvalidInput(f"{key[:64]!r} belongs to a narrower scope", data={"key": "not global"})
        return self._folder_of(scope) + key

    def _parse_path(self, path: str) -> tuple[ConfigScope, str]:
        relative_path = path.removeprefix(self._root)
        for scope_kind, folder in _FOLDER_BY_SCOPE.items():
            scope_name, _, key = relative_path.removeprefix(f"{folder}/").partition("/")
            if relative_path.startswith(f"{folder}/") and scope_name and key:
                return ConfigScope(scope_kind, scope_name), key
        return GLOBAL, relative_path

    def _key_ranges(self, scope: ConfigScope, prefix: str) -> tuple[dict[str, str] | None, dict[str, str]]:
        """Returns the etcd range of the key itself (None without a prefix), and the range of the keys below it."""
        folder, trimmed_prefix = self._folder_of(scope), prefix.rstrip("/")
        below_prefix = f"{folder}{trimmed_prefix}/" if trimmed_prefix else folder
        exact_key = {"key": _to_base64(folder + trimmed_prefix)} if trimmed_prefix else None
        return exact_key, {"key": _to_base64(below_prefix), "range_end": _range_end(below_prefix)}

    async def _watch_once(self, last_revision: int) -> AsyncIterator[tuple[int, list[ConfigChange]]]:
        """Yields the changes after a revision. Raises Unavailable when the connection ends."""
        watch_request = {
            "key": _to_base64(self._root),
            "range_end": _range_end(self._root),
            "start_revision": str(last_revision + 1),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout.total, sock_read=_MAX_SILENCE_S)
        async with self._post("watch", {"create_request": watch_request}, timeout) as response:
            unfinished_line = b""
            async for chunk in response.content.iter_any():
                *lines, unfinished_line = (unfinished_line + chunk).split(b"\n")
                for line in filter(None, lines):
                    message = msgspec.json.decode(line)
                    if "error" in message:
                        raise Unavailable(f"etcd ended the watch: {str(message['error'])[:200]}")
                    result = message["result"]
                    if int(result.get("compact_revision", 0)) > 0:
                        yield await self.read_all()
                        return
                    if result.get("canceled"):
                        raise Unavailable(f"etcd refuses the watch: {str(result.get('cancel_reason'))[:200]}")
                    changes = [self._change_of(event) for event in result.get("events", ())]
                    if changes:
                        yield changes[-1].revision, changes
        raise Unavailable("etcd ended the watch")

    def _change_of(self, event: Mapping[str, Any]) -> ConfigChange:
        pair = event["kv"]
        scope, key = self._parse_path(_from_base64(pair["key"]))
        value = None if event.get("type") == "DELETE" else _from_base64(pair.get("value", ""))
        return ConfigChange(revision=int(pair["mod_revision"]), scope=scope, key=key, value=value)

    async def _call(self, method: str, body: Mapping[str, Any]) -> dict[str, Any]:
        async with self._post(method, body, self._timeout) as response:
            answer: dict[str, Any] = msgspec.json.decode(await response.read())
            return answer

    @asynccontextmanager
    async def _post(
        self, method: str, body: Mapping[str, Any], timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Sends a POST request to etcd and yields the response.

        Raises Unavailable if no member answers, InvalidInput if etcd refuses the request.
        """
        response = await self._request_members(method, body, timeout)
        try:
            yield response
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as e:
            raise Unavailable(f"the answer of etcd broke off: {type(e).__name__}") from e
        finally:
            response.close()

    async def _request_members(
        self, method: str, body: Mapping[str, Any], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """Returns the first successful response of an etcd member. Each member is tried at most twice."""
        if self._http is None:
            self._http = aiohttp.ClientSession()
        last_error: BackendError = Unavailable("no etcd is named")
        for _ in range(2 * len(self._endpoints)):
            try:
                if self._credentials is not None and self._token is None:
                    self._token = await self._authenticate()
                headers = {"Authorization": self._token} if self._token is not None else {}
                url = f"{self._endpoints[0]}/v3/{method}"
                response = await self._http.post(url, json=body, headers=headers, timeout=timeout)
            except (aiohttp.ClientError, TimeoutError, OSError) as e:
                self._endpoints.append(self._endpoints.pop(0))
                last_error = Unavailable(f"etcd does not answer: {type(e).__name__}")
                continue
            if response.status == 200:
                return response
            last_error = await self._refusal_of(response)
            if isinstance(last_error, InvalidInput):
                break
        raise last_error

    async def _authenticate(self) -> str:
        assert self._http is not None
        url = f"{self._endpoints[0]}/v3/auth/authenticate"
        async with self._http.post(url, json=self._credentials, timeout=self._timeout) as response:
            if response.status != 200:
                raise InvalidInput("etcd refuses the user or the password", data={"etcd.user": "refused"})
            return str(msgspec.json.decode(await response.read())["token"])

    async def _refusal_of(self, response: aiohttp.ClientResponse) -> BackendError:
        reply = (await response.read())[:200].decode(errors="replace")
        response.close()
        if response.status == 401 or "auth token" in reply:
            self._token = None
            return Unavailable("etcd asks for a new token")
        if response.status in (400, 404):
            return InvalidInput(f"etcd does not take it: {reply}", data={"etcd": "refused"})
        self._endpoints.append(self._endpoints.pop(0))
        return Unavailable(f"etcd answers {response.status}: {reply}")
