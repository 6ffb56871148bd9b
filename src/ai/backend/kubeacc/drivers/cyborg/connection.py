"""Sends requests to the services of an OpenStack cloud, as an account that also has the role of a service.

Keystone's own client library gets, renews and sends both tokens. It blocks, so each request runs in a thread. A
request that was sent is waited for also where its caller is cancelled: nobody may undo what is still being done.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
import requests
from keystoneauth1 import exceptions, loading
from keystoneauth1.service_token import ServiceTokenAuthWrapper
from keystoneauth1.session import Session

from ai.backend.common.errors import (
    BackendError,
    Conflict,
    InvalidInput,
    NotFound,
    PeerRefused,
    StorageFull,
    Unavailable,
)
from ai.backend.kubeacc.drivers.cyborg.settings import CyborgSettings


class CloudUnavailable(
    Unavailable, code="cloud-unavailable", title="A service of the cloud does not answer, or not sensibly; try again."
): ...


class BindFailed(
    CloudUnavailable, code="bind-failed", title="The cloud has not bound the accelerator to the machine."
): ...


class CloudRefused(PeerRefused, code="cloud-refused", title="A service of the cloud refuses what we ask."): ...


T = TypeVar("T")
_API_VERSIONS = {
    "accelerator": "accelerator 2.3",
    "placement": "placement 1.38",
    "compute": "compute 2.79",
    "image": "",
}
_API_PATHS = {"accelerator": "/v2", "image": "/v2", "placement": "", "compute": ""}
"""The path of the version that an endpoint may lack."""
_SERVICE_NAMES = {"accelerator": "Cyborg", "placement": "Placement", "image": "Glance", "compute": "Nova"}
_MAX_ANSWER_BYTES = 16 << 20
_CHUNK_BYTES = 1 << 18
_MAX_DOWNLOAD_S = 900.0
"""Of one image: its thread cannot be stopped."""
_FILE_SUFFIX = "-file"


class Cloud:
    """Connects to an OpenStack cloud by its settings.

    Raises InvalidInput if they name no account that keystoneauth can use.
    """

    def __init__(self, settings: CyborgSettings) -> None:
        self._settings = settings
        auth = _auth_plugin(settings.auth_type, settings.auth)
        service_auth = _auth_plugin(settings.auth_type, settings.service_auth) if settings.service_auth else auth
        self._session = Session(
            auth=ServiceTokenAuthWrapper(user_auth=auth, service_auth=service_auth),
            verify=str(settings.ca_file) if settings.ca_file else True,
            timeout=settings.request_timeout,
            redirect=False,  # neither a password nor a token goes where a redirect leads
            user_agent="backendai-kube-acc",
        )

    async def request(
        self,
        service: str,
        method: str,
        path: str,
        type_: Callable[..., T] | type[T],
        *,
        body: Any = None,
        timeout_s: float | None = None,
    ) -> T:
        """Sends a request and returns the decoded reply. The type None means that no reply body is expected.

        Raises CloudUnavailable: no usable answer, so that the request may or may not have been done; CloudRefused,
        NotFound, Conflict, InvalidInput as the service answers.
        """
        return await _run_in_thread(lambda: self._request(service, method, path, type_, body, timeout_s))

    async def upload(self, path: str, file: Path) -> None:
        """Sends the content of a file to Glance. Raises as :meth:`request` does."""

        def send() -> None:
            with file.open("rb") as file_content:
                headers = {"Content-Type": "application/octet-stream"}
                self._send("image", "PUT", path, data=file_content, headers=headers).close()

        await _run_in_thread(send)

    async def download(self, path: str, target: BinaryIO, limit: int) -> None:
        """Writes a file of Glance into ``target``. A file of more than ``limit`` bytes raises InvalidInput."""

        def receive() -> None:
            size, deadline = 0, time.monotonic() + _MAX_DOWNLOAD_S
            with self._send("image", "GET", path, headers={"Accept-Encoding": "identity"}) as response:
                for chunk in self._chunks("image", response, deadline):
                    size += len(chunk)
                    if size > limit:
                        raise InvalidInput(f"the image is larger than {limit} bytes")
                    target.write(chunk)

        await _run_in_thread(receive)

    async def project_and_user(self) -> tuple[str, str]:
        """Returns the ids of the account's project and of its user. Raises as :meth:`request` does."""

        def read_ids() -> tuple[str, str]:
            with _translate_errors("Keystone"):
                return self._session.get_project_id() or "", self._session.get_user_id() or ""

        return await _run_in_thread(read_ids)

    def _request(self, service: str, method: str, path: str, type_: Any, body: Any, timeout_s: float | None) -> Any:
        headers = {"Accept": "application/json"}
        request_body = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            request_body = msgspec.json.encode(body)
        deadline = time.monotonic() + (timeout_s or self._settings.request_timeout)
        with self._send(service, method, path, data=request_body, headers=headers, timeout=timeout_s) as response:
            response_body = bytearray()
            for chunk in self._chunks(service, response, deadline):
                response_body += chunk
                if len(response_body) > _MAX_ANSWER_BYTES:
                    raise CloudUnavailable(f"{_SERVICE_NAMES[service]} answers more than {_MAX_ANSWER_BYTES} bytes")
        if type_ is type(None):
            return None
        try:
            return msgspec.json.decode(bytes(response_body), type=type_)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
            raise CloudUnavailable(f"{_SERVICE_NAMES[service]} answers what it should not: {str(e)[:200]}") from None

    def _chunks(self, service: str, response: requests.Response, deadline: float | None) -> Iterator[bytes]:
        try:
            for chunk in response.iter_content(_CHUNK_BYTES):
                yield chunk
                if deadline is not None and time.monotonic() > deadline:
                    raise CloudUnavailable(f"{_SERVICE_NAMES[service]} answers too slowly")
        except requests.RequestException as e:
            raise CloudUnavailable(f"{_SERVICE_NAMES[service]} broke off its answer: {type(e).__name__}") from None

    def _send(
        self,
        service: str,
        method: str,
        path: str,
        *,
        data: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> requests.Response:
        settings, name = self._settings, _SERVICE_NAMES[service]
        with _translate_errors(name):
            url = self._endpoint(service)
            sent_headers = dict(headers or {})
            if _API_VERSIONS[service]:
                sent_headers["OpenStack-API-Version"] = _API_VERSIONS[service]
            response: requests.Response = self._session.request(
                f"{url}{path}",
                method,
                data=data,
                headers=sent_headers,
                redirect=False,
                raise_exc=False,
                stream=True,
                timeout=timeout or settings.request_timeout,
            )
        if response.status_code >= 300:
            with response:
                error_text = fault_text(next(self._chunks(service, response, None), b""))
            raise refusal_of(name, response.status_code, error_text)
        return response

    def _endpoint(self, service: str) -> str:
        settings = self._settings
        url = settings.endpoints.get(service) or self._session.get_endpoint(
            service_type=service,
            interface=settings.interface,
            region_name=settings.region or None,
            skip_discovery=True,
        )
        if not url:
            raise CloudRefused(
                f"the catalog of Keystone has no {settings.interface} endpoint of {_SERVICE_NAMES[service]}"
            )
        url = str(url).rstrip("/")
        return url if url.endswith(_API_PATHS[service]) else f"{url}{_API_PATHS[service]}"


async def _run_in_thread(work: Callable[[], T]) -> T:
    """Runs blocking work in a thread to its end. A cancellation waits for the end of the work."""
    running_work = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running_work)
    except asyncio.CancelledError:
        with suppress(BackendError):
            await running_work
        raise


class _translate_errors:  # noqa: N801  # used as a function
    """Translates the exceptions of keystoneauth into errors of the platform."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        name = self._name
        if isinstance(error, exceptions.SSLError):
            raise CloudRefused(f"the certificate of {name} is not valid") from None
        if isinstance(error, exceptions.Unauthorized | exceptions.MissingAuthPlugin | exceptions.Forbidden):
            raise CloudRefused("Keystone does not take our account or its password") from None
        if isinstance(error, exceptions.EndpointNotFound | exceptions.EmptyCatalog):
            raise CloudRefused(f"the catalog of Keystone has no endpoint of {name}") from None
        if isinstance(error, exceptions.ClientException | requests.RequestException | OSError):
            raise CloudUnavailable(f"{name} does not answer: {type(error).__name__}") from None


def refusal_of(name: str, status: int, error_text: str) -> BackendError:
    """Returns the error for a reply that reports no success."""
    message = f"{name} answers {status}: {error_text}" if error_text else f"{name} answers {status}"
    if status == 404:
        return NotFound(message)
    if status in (409, 423):
        return Conflict(message)
    if status == 413:
        return StorageFull(message)
    if status in (401, 403):
        return CloudRefused(message)
    if status in (408, 429) or status >= 500:
        return CloudUnavailable(message)
    if status >= 400:
        return InvalidInput(message)
    return CloudRefused(f"{message}: a redirect, which is not followed")


def fault_text(body: bytes) -> str:
    """Returns the fault that a reply describes, as one line of at most 300 characters."""
    fault = body[:4096].decode(errors="replace")
    with suppress(msgspec.MsgspecError, RecursionError):
        error_document = msgspec.json.decode(body)
        for _ in range(4):  # {"error_message": "{\"faultstring\": ...}"}, {"errors": [{"detail": ...}]}
            if isinstance(error_document, list) and error_document:
                error_document = error_document[0]
            elif isinstance(error_document, dict):
                keys = ("error_message", "faultstring", "errors", "detail", "message", "error")
                error_document = next((error_document[key] for key in keys if error_document.get(key)), None)
            elif isinstance(error_document, str):
                fault = error_document
                with suppress(msgspec.MsgspecError):
                    error_document = msgspec.json.decode(error_document)
    return " ".join("".join(character if character.isprintable() else " " for character in fault).split())[:300]


def _auth_plugin(auth_type: str, options: Mapping[str, str]) -> Any:
    option_values = {}
    for key, value in options.items():
        name = key
        if key.endswith(_FILE_SUFFIX):
            try:
                name, value = key.removesuffix(_FILE_SUFFIX), Path(value).read_text().strip()
            except (OSError, UnicodeDecodeError) as e:
                raise InvalidInput(f"auth.{key}: {value} cannot be read: {type(e).__name__}") from None
        option_values[name.replace("-", "_")] = value
    try:
        return loading.get_plugin_loader(auth_type).load_from_options(**option_values)
    except (exceptions.ClientException, TypeError, ValueError) as e:
        raise InvalidInput(f"the account of the cloud is not complete: {e}") from None
