from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.node.relay.framing import MAX_FRAME, FrameReader, ProtocolViolation, encode, kind_of, pack, stamp

bodies = st.lists(st.binary(min_size=1, max_size=200), max_size=10)


@given(bodies, st.integers(min_value=1, max_value=50))
def test_frames_survive_any_cut(sent: list[bytes], step: int) -> None:
    stream = b"".join(map(pack, sent))
    reader = FrameReader()
    got = [body for start in range(0, len(stream), step) for body in reader.feed(stream[start : start + step])]
    assert got == sent
    assert reader.buffered == 0


@pytest.mark.parametrize("size", [0, MAX_FRAME + 1, 2**32 - 1])
def test_an_impossible_length_is_a_violation(size: int) -> None:
    with pytest.raises(ProtocolViolation):
        list(FrameReader().feed(size.to_bytes(4, "big") + b"{}"))


def test_the_kind_is_found_wherever_it_stands() -> None:
    assert kind_of(b'{"t":"console","id":1}') == "console"
    assert kind_of(b'{ "t" : "pty-output" }') == "pty-output"
    assert kind_of(b'{"t": "pty-output", broken') == "pty-output", "what begins with its type is not decoded"
    assert kind_of(b'{"t":"a\\u0062"}') == "ab", "what is no plain word is"
    assert kind_of(b'{"t":"Upper"}') == "Upper"
    assert kind_of(b'{"t":"%s"}' % (b"a" * 41)) == "a" * 41
    assert kind_of(b'{"id":1,"t":"reply"}') == "reply"


@pytest.mark.parametrize(
    "body", [b"[]", b"{}", b'{"t":1}', b"nonsense", b"\xff\xfe", pytest.param(b"[" * 100_000, id="nested")]
)
def test_what_is_no_message_is_a_violation(body: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        kind_of(body)


def test_the_number_of_the_shim_wins() -> None:
    assert json.loads(stamp(b'{"t":"x","seq":99} \n', 7)) == {"t": "x", "seq": 7}
    with pytest.raises(ProtocolViolation):
        stamp(b"[1]", 7)


def test_encode_is_pack_of_json() -> None:
    assert list(FrameReader().feed(encode({"t": "é"}))) == [b'{"t":"\\u00e9"}']
