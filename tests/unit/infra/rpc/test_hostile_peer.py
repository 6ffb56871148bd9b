"""What a peer of the link may send instead of messages."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ai.backend.common.errors import InternalError
from ai.backend.common.wire.execution import KernelRef
from ai.backend.infra.rpc.frames import Envelope, Kind, WireError, decode, decode_body
from ai.backend.infra.rpc.methods import COMMANDS, REPORTS, Service
from ai.backend.infra.rpc.multiplexer import Multiplexer

TOO_DEEP = b"\x81\xa7display" + b"\x91" * 100_000 + b"\xc0"
NO_TEXT = b"\x81\xa8agent_id\xa2\xff\xfe"


def _multiplexer() -> tuple[Multiplexer, list[Envelope]]:
    sent: list[Envelope] = []

    async def send(data: bytes) -> None:
        sent.append(decode(data))

    service = Service(REPORTS, object())
    return Multiplexer("peer", send, service=service, max_message_bytes=1 << 20), sent


@pytest.mark.parametrize("body", [NO_TEXT, TOO_DEEP, b"\x93"])
async def test_a_call_of_nonsense_is_refused(body: bytes) -> None:
    multiplexer, sent = _multiplexer()
    multiplexer.feed(Envelope(Kind.CALL, 7, "heartbeat", msgspec.Raw(body)))
    for _ in range(5):
        await asyncio.sleep(0)
    (reply,) = sent
    assert (reply.kind, reply.id) == (Kind.ERROR, 7)
    assert decode_body(reply.body, WireError).code == "invalid-api-params"


@pytest.mark.parametrize("body", [b"\xa2\xff\xfe", b"\x91" * 100_000 + b"\xc0", b"\x93"])
async def test_an_answer_of_nonsense_is_not_waited_for(body: bytes) -> None:
    multiplexer, sent = _multiplexer()
    method: Any = COMMANDS["list_files"]
    call = asyncio.ensure_future(multiplexer.call(method, KernelRef(kernel_id="k")))
    for _ in range(5):
        await asyncio.sleep(0)
    multiplexer.feed(Envelope(Kind.REPLY, sent[0].id, "", msgspec.Raw(body)))
    with pytest.raises(InternalError):
        await asyncio.wait_for(call, 1)


@pytest.mark.parametrize("data", [b"\x93\x04\x01\xa2\xff\xfe", b"\x91" * 100_000, b""])
def test_an_envelope_of_nonsense_is_one_kind_of_error(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode(data)
