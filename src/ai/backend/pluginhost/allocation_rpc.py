"""Asks a plugin's own alloc map in its host for devices; the agent keeps the accounts.

An alloc map is asked synchronously, inside of the agent's decision to take a kernel. So the plugin's map gets a socket
and a thread of its own, and every question is complete: what is held, and what is wanted. The map begins fresh each
time, holds nothing between questions, and a host that dies takes no books with it. See decision 0057.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import msgspec

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.errors import BackendError, PluginError, from_wire
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.core.allocation.alloc_map import AbstractAllocMap, AffinityHint
from ai.backend.plugin.accelerator.shapes import InvalidResponse
from ai.backend.pluginhost.protocol import Choice, length_of, pack, safe_message

CHOICE_DEADLINE_S = 1.0

Allocate = Callable[
    [DeviceAllocation, Mapping[SlotName, Decimal], AffinityHint, frozenset[DeviceId] | None], DeviceAllocation
]
"""``(held, request, hint, eligible)`` -> the devices for the request."""


class _Chosen(msgspec.Struct, frozen=True, kw_only=True):
    allocation: DeviceAllocation | None = None
    code: str = ""
    message: str = ""
    data: dict[str, Any] = {}


def allocator(alloc_map: AbstractAllocMap) -> Allocate:
    """Returns a function that asks a map with nothing allocated."""
    fresh = alloc_map.snapshot()

    def choose(
        held: DeviceAllocation,
        request: Mapping[SlotName, Decimal],
        hint: AffinityHint,
        eligible: frozenset[DeviceId] | None,
    ) -> DeviceAllocation:
        alloc_map.restore(fresh)
        if held.slots:
            alloc_map.apply(held)
        return alloc_map.allocate(request, hint=hint, eligible=eligible)

    return choose


def serve_choices(sock: socket.socket, present: Callable[[], Allocate]) -> None:
    """Answers from the present map until the agent closes its end. Runs in a thread."""
    decoder = msgspec.msgpack.Decoder(Choice)
    while (data := _receive(sock)) is not None:
        request = decoder.decode(data)
        try:
            hint = AffinityHint(numa_nodes=request.numa_nodes)
            chosen: Any = present()(request.held, request.request, hint, request.eligible)
            if not isinstance(chosen, DeviceAllocation):
                raise PluginError(f"returned a {type(chosen).__name__} instead of a DeviceAllocation")
            frame = pack(_Chosen(allocation=chosen))
        except BackendError as e:
            frame = pack(_Chosen(code=str(e.code), message=safe_message(e)))
        except BaseException as e:  # noqa: BLE001  # a plugin may raise anything
            frame = pack(_Chosen(code=PluginError.code, message=f"{type(e).__name__}: {safe_message(e)}"))
        try:
            sock.sendall(frame)
        except OSError:
            return


def ask(sock: socket.socket, choice: Choice) -> DeviceAllocation:
    """Returns the agent's side; waits at most :data:`CHOICE_DEADLINE_S`.

    Raises:
        TimeoutError: no answer in time; the socket is of no use any more.
        PluginError: the host is gone, or answers what cannot be read.
        BackendError: what the map says.
    """
    until = time.monotonic() + CHOICE_DEADLINE_S
    sock.settimeout(CHOICE_DEADLINE_S)
    try:
        sock.sendall(pack(choice))
        data = _receive(sock, until)
        if data is None:
            raise PluginError("its host process is gone")
        chosen = msgspec.msgpack.decode(data, type=_Chosen)
    except TimeoutError:
        raise
    except (OSError, InvalidResponse, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise PluginError(f"its alloc map cannot be asked: {e}") from None
    if chosen.allocation is None:
        raise from_wire(chosen.code, chosen.message, chosen.data)
    return chosen.allocation


def _receive(sock: socket.socket, until: float | None = None) -> bytes | None:
    """Reads a frame; None at the end. Raises TimeoutError if it is incomplete at the deadline."""
    head = _exactly(sock, 4, until)
    return None if head is None else _exactly(sock, length_of(head), until)


def _exactly(sock: socket.socket, count: int, until: float | None) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        if until is not None:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            sock.settimeout(left_s)
        part = sock.recv(count - len(data))
        if not part:
            return None
        data += part
    return bytes(data)
