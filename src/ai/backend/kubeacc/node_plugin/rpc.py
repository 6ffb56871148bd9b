"""Serves and calls gRPC services on unix sockets of the kubelet's directories."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from ai.backend.common.errors import Unavailable
from ai.backend.kubeacc.node_plugin.wire import SERVICES

_MAX_MESSAGE_BYTES = 16 << 20
_OPTIONS = [("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES), ("grpc.max_send_message_length", -1)]
_CLOSE_PATIENCE_S = 2.0
_CHECK_S = 1.0
_MAX_SOCKET_PATH = 107
"""The kernel's limit for the path of a unix socket."""


def _serialize(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _handler(service: str, implementation: object) -> grpc.GenericRpcHandler:
    handlers = {}
    for name, request, _response, is_stream in SERVICES[service]:
        method = getattr(implementation, re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower())
        make_handler = grpc.unary_stream_rpc_method_handler if is_stream else grpc.unary_unary_rpc_method_handler
        handlers[name] = make_handler(method, request_deserializer=request.FromString, response_serializer=_serialize)
    return grpc.method_handlers_generic_handler(service, handlers)


def _prepare_socket_path(path: Path) -> None:
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)


def _restrict_access(path: Path) -> None:
    path.chmod(0o600)


@asynccontextmanager
async def grpc_server(path: Path, services: dict[str, object]) -> AsyncIterator[None]:
    """Serves gRPC implementations by the names of their services on a socket that only this user may use.

    An existing socket is replaced. Methods have the names of the API in lower case. Raises Unavailable.
    """
    if len(str(path).encode()) > _MAX_SOCKET_PATH:
        raise Unavailable(f"{path} is too long for the path of a socket")
    try:
        _prepare_socket_path(path)
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers(
            tuple(_handler(name, implementation) for name, implementation in services.items())
        )
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        _restrict_access(path)
    except (OSError, RuntimeError) as e:
        raise Unavailable(f"{path} cannot be served: {e}") from None
    try:
        yield
    finally:
        await server.stop(_CLOSE_PATIENCE_S)
        with contextlib.suppress(OSError):
            _prepare_socket_path(path)


@asynccontextmanager
async def grpc_client(path: Path, service: str) -> AsyncIterator[Callable[..., Any]]:
    """Yields a function that calls a method of a service, by name, with a request.

    What it raises is ``grpc.aio.AioRpcError``; for a stream it returns the call, which is iterated.
    """
    async with grpc.aio.insecure_channel(f"unix:{path}", options=_OPTIONS) as channel:
        methods = {name: (request, response, is_stream) for name, request, response, is_stream in SERVICES[service]}

        def call(name: str, request: Any, timeout_s: float | None = 10.0) -> Any:
            _, response, is_stream = methods[name]
            make_invoker = channel.unary_stream if is_stream else channel.unary_unary
            invoke = make_invoker(
                f"/{service}/{name}", request_serializer=_serialize, response_deserializer=response.FromString
            )
            return invoke(request, timeout=timeout_s)

        yield call


async def wait_for_change(*paths: Path) -> None:
    """Waits until one of the files is removed or replaced, for example the socket of a kubelet that restarts.

    A restarted kubelet sends no other notice.
    """
    initial_identities = [_file_identity(path) for path in paths]
    while all(initial_identities) and [_file_identity(path) for path in paths] == initial_identities:  # noqa: ASYNC110  # of other processes
        await asyncio.sleep(_CHECK_S)


def _file_identity(path: Path) -> tuple[int, int, int] | None:
    try:
        file_status = path.stat()
    except OSError:
        return None
    return file_status.st_dev, file_status.st_ino, file_status.st_ctime_ns
