"""Messages of the link that are damaged."""

from __future__ import annotations

import msgspec
import pytest

from ai.backend.infra.rpc.frames import Kind, decode, decode_body, encode


def test_text_that_is_no_text_is_a_message_that_cannot_be_read() -> None:
    message = encode(Kind.REPLY, 1, "name", "text", limit=1 << 20)
    with pytest.raises(msgspec.DecodeError):
        decode(message.replace(b"name", b"\xff\xff\xff\xff"))
    with pytest.raises(msgspec.DecodeError):
        decode_body(decode(message.replace(b"text", b"\xff\xff\xff\xff")).body, str)
