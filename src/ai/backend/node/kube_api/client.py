"""Sends requests to an API server and decodes the answers into projections."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Literal, Protocol, TypeVar, cast

import aiohttp
import msgspec
from yarl import URL

from ai.backend.common.errors import DeadlineExceeded, InvalidInput, Unavailable
from ai.backend.node.kube_api.concurrency import ConcurrencyLimit
from ai.backend.node.kube_api.configuration import ClusterAddress
from ai.backend.node.kube_api.decoding import Undecodable, decode, undecodable
from ai.backend.node.kube_api.errors import (
    ApiRefusal,
    CredentialsRefused,
    ObjectNotFound,
    ServerFailed,
    TooManyRequests,
    parse_status,
    refusal_of,
)
from ai.backend.node.kube_api.objects import KubeObject
from ai.backend.node.kube_api.resources import ObjectT, Resource

T = TypeVar("T")
PatchKind = Literal["merge", "json", "strategic"]
Propagation = Literal["", "Background", "Foreground", "Orphan"]
REQUEST_TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 10.0
_SLOW_S = 5.0
"""The seconds after which a request counts as a sign of overload."""
_MAX_BUSY_RETRIES = 5
"""How often a request is sent again that a busy server has refused to begin."""
_BUSY_WAIT_S = 1.0
_PAGE_OBJECTS = 500
_REQUEST_CONNECTIONS = 128
_WATCH_CONNECTIONS = 64
_CHUNK_BYTES = 1 << 16
_ABORTS_AT_CLOSE = sys.version_info < (3, 12, 8)
"""True if the connector must abort the connections of cancelled requests. Python's own TLS ends them in time from
3.12.8 on.
"""
_TURNS_TO_CLOSE = 3
"""Turns of the event loop in which a transport that was aborted closes its socket."""
_PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


class Delays(Protocol):
    """Computes the delays between repeated attempts, as ``ai.backend.infra.retry.Backoff`` does."""

    async def wait(self) -> None:
        """Records a failure, and sleeps until the next attempt."""

    def reset(self) -> None:
        """Records a success, so that the next delay is short again."""


class _ServedKind(msgspec.Struct, frozen=True):
    name: str = ""


class _ServedKinds(msgspec.Struct, frozen=True):
    resources: list[_ServedKind] = []


class _ListMeta(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


def path_of(resource: Resource[Any], namespace: str = "", name: str = "", subresource: str = "") -> str:
    """Returns the URL path of an object in the Kubernetes API, or of a collection if ``name`` is empty.

    Without ``namespace`` the collection is that of all namespaces.

    Raises InvalidInput for a name that would leave its place in the path.
    """
    segments = [resource.root]
    for segment in (namespace, name, subresource):
        if segment in (".", "..") or "/" in segment or "%" in segment or "?" in segment or "#" in segment:
            raise InvalidInput(f"{segment[:253]!r} is no name of an object", data={"name": "malformed"})
    if namespace and resource.is_namespaced:
        segments += ["namespaces", namespace]
    segments.append(resource.plural)
    return "/".join([*segments, *(segment for segment in (name, subresource) if segment)])


class KubeApi:
    """Sends requests to one API server, and decodes its answers.

    Requests and watches have connections of their own, so that watches keep no request waiting. A request that the
    server refuses for its load (429) waits as long as the server asks and is sent again a few times; no other request
    is repeated, since it may have been executed. Made inside a running event loop; ``close`` releases the connections.

    Args:
        delays: makes the delays between the attempts of one watch or election.
        user_agent: shown in the audit log of the cluster.

    Every request raises what :mod:`ai.backend.node.kube_api.errors` describes, Unavailable without a connection, and
    DeadlineExceeded; after both it may have been executed.
    """

    def __init__(
        self,
        address: ClusterAddress,
        delays: Callable[[], Delays],
        *,
        user_agent: str = "backendai",
        limit: ConcurrencyLimit | None = None,
    ) -> None:
        self.address = address
        self.delays = delays
        self.limit = limit or ConcurrencyLimit()
        self._user_agent = user_agent
        tls = address.tls()
        self._tls: Any = tls if tls is not None else True
        self._requests = self._session(_REQUEST_CONNECTIONS)
        self._watches = self._session(_WATCH_CONNECTIONS)
        self._open_streams: set[aiohttp.ClientResponse] = set()
        self._rng = random.Random()  # jitter

    def _session(self, connections: int) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=connections, ssl=self._tls, enable_cleanup_closed=_ABORTS_AT_CLOSE)
        return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=True)

    async def close(self) -> None:
        """Closes all connections; watches and requests under way fail with Unavailable."""
        for response in self._open_streams:  # the end of its connection alone is not told to who reads
            response.content.set_exception(aiohttp.ClientConnectionError("the client is closed"))
        await self._requests.close()
        await self._watches.close()
        for _ in range(_TURNS_TO_CLOSE):
            await asyncio.sleep(0)

    async def get(self, resource: Resource[ObjectT], name: str, namespace: str = "") -> ObjectT:
        body = await self.request("GET", path_of(resource, namespace, name))
        return _decode_answer(body, resource.type)

    async def find(self, resource: Resource[ObjectT], name: str, namespace: str = "") -> ObjectT | None:
        """Returns an object, or None if there is none."""
        try:
            return await self.get(resource, name, namespace)
        except ObjectNotFound:
            return None

    async def list(
        self,
        resource: Resource[ObjectT],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> tuple[list[ObjectT], str]:
        """Returns all objects and the version of the list, read page by page. Raises ServerFailed if an object does not
        fit the projection.
        """
        objects, version = await self.list_readable(
            resource, namespace, label_selector=label_selector, field_selector=field_selector
        )
        for obj in objects:
            if isinstance(obj, Undecodable):
                raise ServerFailed(f"{resource} {'/'.join(filter(None, obj.key))} has another form: {obj.problem}")
        return cast("list[ObjectT]", objects), version

    async def list_readable(
        self,
        resource: Resource[ObjectT],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> tuple[Sequence[ObjectT | Undecodable], str]:
        """Returns all objects and the version of the list. An object that does not fit the projection is returned as
        Undecodable.
        """
        query = {"limit": str(_PAGE_OBJECTS), **selector_query(label_selector, field_selector)}
        objects: list[ObjectT | Undecodable] = []
        while True:
            body = await self.request("GET", path_of(resource, namespace), query=query)
            page, metadata = _page_of(body, resource.type)
            objects += page
            if not metadata.continue_:
                return objects, metadata.resource_version
            query["continue"] = metadata.continue_

    async def create(
        self, resource: Resource[ObjectT], body: Mapping[str, Any], namespace: str = "", *, dry_run: bool = False
    ) -> ObjectT:
        """Creates an object. Raises ObjectExists, RequestDenied, ObjectInvalid among others."""
        manifest = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        query = {"dryRun": "All"} if dry_run else {}
        answer_body = await self.request("POST", path_of(resource, namespace), query=query, body=manifest)
        return _decode_answer(answer_body, resource.type)

    async def replace(
        self,
        resource: Resource[ObjectT],
        name: str,
        body: Mapping[str, Any],
        namespace: str = "",
        subresource: str = "",
    ) -> ObjectT:
        """Replaces an object. With ``metadata.resourceVersion`` only this version is replaced. Raises
        ObjectConflict.
        """
        manifest = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        answer_body = await self.request("PUT", path_of(resource, namespace, name, subresource), body=manifest)
        return _decode_answer(answer_body, resource.type)

    async def patch(
        self,
        resource: Resource[ObjectT],
        name: str,
        body: Mapping[str, Any] | Sequence[Any],
        namespace: str = "",
        *,
        kind: PatchKind = "merge",
        subresource: str = "",
    ) -> ObjectT:
        """Changes an object. ``metadata.uid`` and ``metadata.resourceVersion`` of a merge patch, or ``test`` of a JSON
        patch, are conditions; if they do not hold, raises ObjectConflict or ObjectInvalid."""
        path = path_of(resource, namespace, name, subresource)
        return _decode_answer(
            await self.request("PATCH", path, body=body, content_type=_PATCH_TYPES[kind]), resource.type
        )

    async def apply(
        self,
        resource: Resource[ObjectT],
        name: str,
        body: Mapping[str, Any],
        namespace: str = "",
        *,
        manager: str,
        force: bool = False,
        subresource: str = "",
    ) -> ObjectT:
        """Creates the object or changes the fields of ``body`` (server-side apply); fields that ``manager`` applied
        before and that are missing now are removed. ``force`` takes fields from other managers, else raises
        ObjectConflict."""
        metadata = {**body.get("metadata", {}), "name": name}
        manifest = {"apiVersion": resource.api_version, "kind": resource.kind, **body, "metadata": metadata}
        answer_body = await self.request(
            "PATCH",
            path_of(resource, namespace, name, subresource),
            query={"fieldManager": manager, "force": "true" if force else "false"},
            body=manifest,
            content_type=_PATCH_TYPES["apply"],
        )
        return _decode_answer(answer_body, resource.type)

    async def delete(
        self,
        resource: Resource[Any],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        grace_s: int | None = None,
        propagation: Propagation = "",
    ) -> bool:
        """Requests the deletion of an object; returns False if there is none.

        Args:
            uid: of the object that is meant; another one of this name raises ObjectConflict.
            resource_version: likewise, of the state that is meant.
            grace_s: the grace period in seconds of a pod; 0 forces, None takes the pod's own.
        """
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if any(preconditions.values()):
            options["preconditions"] = {key: value for key, value in preconditions.items() if value}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if propagation:
            options["propagationPolicy"] = propagation
        try:
            await self.request("DELETE", path_of(resource, namespace, name), body=options)
        except ObjectNotFound:
            return False
        return True

    async def is_served(self, resource: Resource[Any]) -> bool:
        """Returns True if the cluster has this kind of objects in this version."""
        try:
            served_kinds = _decode_answer(await self.request("GET", resource.root), _ServedKinds)
        except ObjectNotFound:
            return False
        return any(served_kind.name == resource.plural for served_kind in served_kinds.resources)

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> bytes:
        """Sends one request and returns the body of its answer."""
        data = None if body is None else msgspec.json.encode(body)
        is_token_renewed = False
        retries = 0
        while True:
            try:
                async with self.limit.slot():
                    return await self._send_once(method, path, query or {}, data, content_type, timeout_s)
            except CredentialsRefused:
                if is_token_renewed or self.address.token.file is None:
                    raise
                is_token_renewed = True
                self.address.token.current(is_refused=True)
            except TooManyRequests as refusal:
                retries += 1
                if retries > _MAX_BUSY_RETRIES:
                    raise
                wait_s = refusal.retry_after_s or _BUSY_WAIT_S
                await asyncio.sleep(wait_s * (1 + self._rng.random()))

    async def _send_once(
        self, method: str, path: str, query: Mapping[str, str], data: bytes | None, content_type: str, timeout_s: float
    ) -> bytes:
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_TIMEOUT_S)
        headers = self._headers() | ({"Content-Type": content_type} if data is not None else {})
        try:
            async with self._requests.request(
                method,
                self._url(path, query),
                data=data,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
                server_hostname=self.address.server_name or None,
            ) as response:
                answer_body = await response.read()
        except TimeoutError:
            self.limit.record_overload()
            message = f"the API server did not answer {method} {path} within {timeout_s:g} s"
            raise DeadlineExceeded(message) from None
        except (aiohttp.ClientError, OSError) as e:
            raise Unavailable(f"the API server at {self.address.server} does not answer: {e}") from None
        if response.status >= 300:
            refusal = self._refusal(response, answer_body, f"{method} {path}")
            if isinstance(refusal, TooManyRequests | ServerFailed):
                self.limit.record_overload()
            raise refusal
        if loop.time() - started_at > _SLOW_S:
            self.limit.record_overload()
        else:
            self.limit.record_success()
        return answer_body

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], *, silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Sends a request, and yields the chunks of its long answer. Raises Unavailable if the server is silent for
        ``silence_s``, and the errors of every request.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=silence_s)
        request_text = f"GET {path}"
        try:
            async with self._watches.get(
                self._url(path, query),
                headers=self._headers(),
                timeout=timeout,
                allow_redirects=False,
                server_hostname=self.address.server_name or None,
            ) as response:
                if response.status >= 300:
                    raise self._refusal(response, await response.content.read(_CHUNK_BYTES), request_text)
                self._open_streams.add(response)
                try:
                    yield response.content.iter_any()
                finally:
                    self._open_streams.discard(response)
                    connection = response.connection
                    if connection is not None and connection.transport is not None:
                        connection.transport.abort()  # a farewell by TLS would outlive the client
        except TimeoutError:
            raise DeadlineExceeded(f"{request_text}: the API server said nothing for {silence_s:g} s") from None
        except (aiohttp.ClientError, OSError) as e:
            raise Unavailable(f"{request_text}: the connection to the API server failed: {e}") from None
        except CredentialsRefused:
            self.address.token.current(is_refused=True)
            raise

    def _url(self, path: str, query: Mapping[str, str]) -> URL:
        return URL(self.address.server + path, encoded=True).with_query(query)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json, */*;q=0.1", "User-Agent": self._user_agent}
        token = self.address.token.current()
        return headers | {"Authorization": f"Bearer {token}"} if token else headers

    @staticmethod
    def _refusal(response: aiohttp.ClientResponse, body: bytes, request_text: str) -> ApiRefusal:
        retry_after = response.headers.get("Retry-After", "")
        return refusal_of(
            parse_status(body), http_status=response.status, retry_after=retry_after, request_text=request_text
        )


def selector_query(label_selector: str, field_selector: str) -> dict[str, str]:
    """Returns the query of a list or watch of some of the objects; an empty selector selects all."""
    values = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in values.items() if value}


@cache
def _decoder_of(cls: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(cls)


@cache
def _list_type(cls: type[KubeObject]) -> Any:
    fields: list[tuple[str, Any, Any]] = [("metadata", _ListMeta, _ListMeta()), ("items", list[cls] | None, None)]  # type: ignore[valid-type]  # of a class known at run time
    return msgspec.defstruct(f"{cls.__name__}List", fields)


class _RawList(msgspec.Struct):
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


def _page_of(body: bytes, cls: type[ObjectT]) -> tuple[list[ObjectT | Undecodable], _ListMeta]:
    """Returns the objects and the metadata of a page. If an object does not fit the projection, all are decoded one by
    one. Raises ServerFailed for what is no list.
    """
    try:
        page = decode(body, _decoder_of(_list_type(cls)))
        return list(page.items or ()), page.metadata
    except msgspec.ValidationError:
        raw_list = _decode_answer(body, _RawList)
        return [_decode_item(item, cls) for item in raw_list.items or ()], raw_list.metadata
    except msgspec.MsgspecError as e:
        raise ServerFailed(f"the API server answered something else than expected: {e}") from None


def _decode_item(item: msgspec.Raw, cls: type[ObjectT]) -> ObjectT | Undecodable:
    decoder: msgspec.json.Decoder[ObjectT] = _decoder_of(cls)
    try:
        return decode(item, decoder)
    except msgspec.ValidationError as e:
        if (obj := undecodable(item, e)) is not None:
            return obj
        raise ServerFailed(f"the API server listed something that is no object: {e}") from None


def _decode_answer(body: bytes, cls: type[T]) -> T:
    """Decodes an answer of the API server as the type ``cls``. Raises ServerFailed if the answer does not fit."""
    answer_type: Any = cls
    decoder: msgspec.json.Decoder[T] = _decoder_of(answer_type)
    try:
        return decode(body, decoder)
    except msgspec.MsgspecError as e:
        raise ServerFailed(f"the API server answered something else than expected: {e}") from None
