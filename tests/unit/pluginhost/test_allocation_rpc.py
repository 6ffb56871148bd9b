"""What the agent waits for when it asks a plugin's alloc map over a socket."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

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


def _drip(sock: socket.socket) -> None:
    try:
        for byte in b"\x00\x00\x01\x00" + bytes(256):
            sock.sendall(bytes([byte]))
            time.sleep(0.1)
    except OSError:
        return


@pytest.mark.parametrize("asked", [_drip, lambda _: None], indirect=True)
def test_an_answer_is_there_in_time_or_not_at_all(asked: socket.socket) -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        ask(asked, CHOICE)
    assert time.monotonic() - began < CHOICE_DEADLINE_S + 0.5


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
