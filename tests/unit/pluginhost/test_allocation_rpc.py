"""What the agent waits for when it asks a plugin's alloc map over a socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.errors import PluginError
from ai.backend.pluginhost.external_alloc_map import CHOICE_DEADLINE_S, ask
from ai.backend.pluginhost.protocol import Choice

CHOICE = Choice(held=DeviceAllocation(), request={}, numa_nodes=frozenset(), eligible=None)
Answer = Callable[[socket.socket], object]


@pytest.fixture
def asked(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """A socket with a host at its other end that answers as the test's parameter does."""
    ours, theirs = socket.socketpair()
    answer: Answer = request.param
    thread = threading.Thread(target=answer, args=(theirs,), daemon=True)
    thread.start()
    yield ours
    ours.close()
    thread.join(5)
    theirs.close()


class SlowSocket:
    """A socket whose peer sends a byte each ``pause_s`` seconds, by a clock that only it moves."""

    def __init__(self, pause_s: float) -> None:
        self.pause_s = pause_s
        self.now = self.timeout_s = 0.0
        self.bytes_to_come = iter(b"\x00\x00\x01\x00" + bytes(256))

    def settimeout(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s

    def sendall(self, data: bytes) -> None: ...

    def recv(self, _size: int) -> bytes:
        self.now += min(self.pause_s, self.timeout_s)
        if self.pause_s > self.timeout_s:
            raise TimeoutError
        return bytes([next(self.bytes_to_come)])


@pytest.mark.parametrize("pause_s", [0.1, 1e9], ids=["drips", "silent"])
def test_an_answer_is_there_in_time_or_not_at_all(pause_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowSocket(pause_s)
    times = SimpleNamespace(monotonic=lambda: slow.now)
    monkeypatch.setattr("ai.backend.pluginhost.external_alloc_map.time", times)
    with pytest.raises(TimeoutError):
        ask(cast("socket.socket", slow), CHOICE)
    assert slow.now == pytest.approx(CHOICE_DEADLINE_S)


@pytest.mark.parametrize(
    "asked",
    [
        lambda sock: sock.sendall(b"\xff" * 64),
        lambda sock: sock.sendall(b"\x00\x00\x00\x01\xc1"),
        lambda sock: sock.sendall(b"\x00\x00\x00\x0c\x81\xa7message\xa1\xff\xff"),
        lambda sock: sock.sendall(b"\x00\x00\x27\x15\x81\xa4data" + b"\x81\xa1a" * 3333),
        lambda sock: sock.shutdown(socket.SHUT_RDWR),
    ],
    ids=["huge", "no msgpack", "not UTF-8", "deep", "closed"],
    indirect=True,
)
def test_what_is_no_answer_is_the_plugins_fault(asked: socket.socket) -> None:
    with pytest.raises(PluginError):
        ask(asked, CHOICE)
