"""Authenticates peers by the ZeroMQ authentication protocol (RFC 27) for one context.

libzmq asks it during each CURVE handshake. It knows one domain, the one that the link's socket names; a socket with
another domain would wait for ever, so the name is a constant of both. The answer's user id is the client's public key,
which then comes with every message as ``User-Id``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import zmq
import zmq.asyncio
from zmq.utils import z85

log = logging.getLogger(__name__)
DOMAIN = b"backendai"
_ENDPOINT = "inproc://zeromq.zap.01"
_VERSION = b"1.0"


class ZapHandler:
    """Answers requests until it is closed. ``is_allowed`` gets a public key in Z85."""

    def __init__(self, context: zmq.asyncio.Context, is_allowed: Callable[[str], bool]) -> None:
        self._is_allowed = is_allowed
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(_ENDPOINT)
        self._task = asyncio.create_task(self._run(), name="zap")

    async def _run(self) -> None:
        while True:
            request = await self._socket.recv_multipart()
            try:
                answer = self._decide(request)
            except Exception:
                log.exception("an authentication request failed")
                answer = (b"500", b"internal error", b"")
            request_id = request[1] if len(request) > 1 else b"1"
            await self._socket.send_multipart([_VERSION, request_id, *answer, b""])

    def _decide(self, request: list[bytes]) -> tuple[bytes, bytes, bytes]:
        if len(request) != 7:
            return b"400", b"a CURVE key is needed", b""
        version, _, domain, address, _, mechanism, key = request
        if version != _VERSION or domain != DOMAIN or mechanism != b"CURVE" or len(key) != 32:
            return b"400", b"not for this link", b""
        public_key = z85.encode(key).decode()
        if not self._is_allowed(public_key):
            log.warning("refused the unknown key %s from %s", public_key, address.decode(errors="replace"))
            return b"400", b"unknown key", b""
        return b"200", b"OK", public_key.encode()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        self._socket.close(0)
