from __future__ import annotations

import json

import pytest

from ai.backend.runner import framing
from ai.backend.runner.framing import BrokenFrame, encode_message, pack, unpack


@pytest.mark.parametrize("text", ["plain", "\u00e9\U0001f600", "a\nb\0", "\udcff"])
def test_a_message_is_length_and_json(text: str) -> None:
    frame = encode_message({"t": "x", "text": text})
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert json.loads(frame[4:]) == {"t": "x", "text": text}


def test_text_is_utf8_and_not_escapes() -> None:
    assert "\u00e9".encode() in encode_message({"text": "\u00e9"})


def test_a_message_that_is_too_large_is_refused() -> None:
    with pytest.raises(BrokenFrame):
        encode_message({"text": "x" * framing.MAX_FRAME_BYTES})


@pytest.mark.parametrize("fields", [[], [b""], [b"a", b"", b"\xff" * 1000]])
def test_frames_of_the_private_pipes_in_any_pieces(fields: list[bytes]) -> None:
    data = pack(b"K", fields) + pack(b"L", [b"next"])
    buffer = bytearray()
    seen = []
    for byte in data:
        buffer.append(byte)
        seen += list(unpack(buffer))
    assert seen == [(b"K", fields), (b"L", [b"next"])]
    assert not buffer


@pytest.mark.parametrize(
    "data", [b"K\xff\xff\xff\xff", b"K\x00\x00\x00\x04\x00\x00\x00\x01", b"K\x00\x00\x00\x02\x00\x00"]
)
def test_impossible_lengths_are_noticed(data: bytes) -> None:
    with pytest.raises(BrokenFrame):
        list(unpack(bytearray(data)))
