"""Clients without TLS: nothing is lost of what comes before their service is connected."""

from __future__ import annotations

import asyncio
from typing import Any

from ai.backend.agent.gateway.direct import DirectClient


class ReadingTransport(asyncio.Transport):
    """Reads whatever it is told, as uvloop does after ``connection_made``."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.protocol: Any = None

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol


class Service(asyncio.Protocol):
    def __init__(self) -> None:
        self.got: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.got.append(data)

    def eof_received(self) -> bool:
        self.got.append(b"(end)")
        return True


def test_what_came_first_is_handed_over_first() -> None:
    accepted: list[asyncio.Transport] = []
    transport, service, client = ReadingTransport(), Service(), DirectClient(accepted.append)
    client.connection_made(transport)
    assert accepted == [transport]
    client.data_received(b"early, ")
    client.data_received(b"and more")
    assert client.eof_received() is True
    client.hand_over(service)
    assert transport.protocol is service
    assert service.got == [b"early, and more", b"(end)"]
    assert transport.calls == ["pause", "pause", "pause", "resume"]


def test_nothing_is_made_up() -> None:
    transport, service, client = ReadingTransport(), Service(), DirectClient(lambda _: None)
    client.connection_made(transport)
    client.hand_over(service)
    assert service.got == []
