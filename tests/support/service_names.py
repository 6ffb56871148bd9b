"""Resolves names of services in the pods of a cluster of the tests, which has no DNS of its own."""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address
from typing import Any

from tools.kube.cluster import Cluster

_PORT = 53
_HEADER = struct.Struct("!6H")
_ADDRESS_OF_QUESTION = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x05\x00\x04"
"""Of the name at offset 12: type A, class IN, five seconds, four bytes."""
_IS_ANSWER, _NAME_ERROR = 0x8580, 3
_TYPE_A = 1


@contextmanager
def resolved(cluster: Cluster, names: dict[str, str]) -> Iterator[None]:
    """Gives pods that are made meanwhile a name server that answers these addresses, as they are by then."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            question, connection = self.request
            connection.sendto(_answer(question, names), self.client_address)

    server = socketserver.ThreadingUDPServer((cluster.host_address, _PORT), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    configuration = cluster.folder / "resolv.conf"
    before = configuration.read_text()
    configuration.write_text(f"nameserver {cluster.host_address}\n{before}")
    try:
        yield
    finally:
        configuration.write_text(before)
        server.shutdown()
        server.server_close()


def _answer(message: bytes, names: dict[str, str]) -> bytes:
    """Returns the answer to a message with one question (RFC 1035)."""
    number, end = _HEADER.unpack_from(message)[0], message.index(b"\0", _HEADER.size) + 5
    question = message[_HEADER.size : end]
    address = names.get(_name(question))
    kind = struct.unpack_from("!H", question, len(question) - 4)[0]
    is_found = address is not None and kind == _TYPE_A
    flags = _IS_ANSWER | (_NAME_ERROR if address is None else 0)
    record = _ADDRESS_OF_QUESTION + IPv4Address(address).packed if is_found and address is not None else b""
    return _HEADER.pack(number, flags, 1, int(bool(record)), 0, 0) + question + record


def _name(question: bytes) -> str:
    labels: list[str] = []
    rest: Any = question
    while rest[0]:
        labels.append(rest[1 : 1 + rest[0]].decode())
        rest = rest[1 + rest[0] :]
    return ".".join(labels).lower()
