from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ai.backend.node.relay.replay import Replay


def body(kind: str, size: int = 10) -> bytes:
    return json.dumps({"t": kind, "data": "x" * size}).encode()


def content(replay: Replay, after: int = 0) -> list[dict[str, Any]]:
    frames = (replay.get(seq) for seq in replay.after(after))
    return [json.loads(frame[4:]) for frame in frames if frame is not None]


def test_numbers_grow_by_one_and_acknowledged_ones_are_forgotten() -> None:
    replay = Replay(10_000)
    assert [replay.push(body("reply")) for _ in range(3)] == [1, 2, 3]
    replay.ack(2)
    assert [message["seq"] for message in content(replay)] == [3]
    assert replay.first_seq == 3
    replay.ack(3)
    assert (replay.size, replay.first_seq, replay.last_seq) == (0, 4, 3)


def test_console_output_goes_first_and_leaves_one_gap_for_a_series() -> None:
    replay = Replay(2_000)
    replay.push(body("ready"))
    for _ in range(20):
        replay.push(body("console", 100))
    replay.push(body("finished"))
    messages = content(replay)
    assert messages[0]["t"] == "ready"
    assert messages[-1]["t"] == "finished"
    gaps = [message for message in messages if message["t"] == "gap"]
    kept = [message for message in messages if message["t"] == "console"]
    assert len(gaps) == 1
    assert gaps[0]["dropped"] + len(kept) == 20
    assert messages[1] == gaps[0]
    assert messages[2]["seq"] == gaps[0]["seq"] + 1


def test_results_are_never_dropped_and_make_it_full() -> None:
    replay = Replay(1_000)
    for _ in range(20):
        replay.push(body("reply", 100))
    assert replay.is_full
    assert len(content(replay)) == 20
    replay.ack(20)
    assert not replay.is_full


def test_bulk_goes_before_the_buffer_is_full() -> None:
    replay = Replay(2_000)
    for _ in range(20):
        replay.push(body("chunk", 200))
    assert not replay.is_full
    assert {message["t"] for message in content(replay)} == {"gap", "chunk"}


kinds = st.sampled_from(["console", "reply", "chunk", "finished", "pty-output"])


@given(st.lists(st.tuples(kinds, st.integers(0, 300)), max_size=60), st.integers(0, 60))
def test_whatever_comes_nothing_is_unaccounted_for(sent: list[tuple[str, int]], acked: int) -> None:
    replay = Replay(3_000)
    for kind, size in sent:
        replay.push(body(kind, size))
    replay.ack(min(acked, replay.last_seq))
    seqs = [message["seq"] for message in content(replay)]
    assert seqs == sorted(set(seqs))
    assert replay.size == sum(len(replay.get(seq) or b"") + 100 for seq in seqs)
    if acked == 0:
        lost = sum(message.get("dropped", 0) for message in content(replay))
        held = sum(1 for message in content(replay) if message["t"] != "gap")
        assert lost + held == len(sent)
        results = [kind for kind, _ in sent if kind in ("reply", "finished")]
        assert [m["t"] for m in content(replay) if m["t"] in ("reply", "finished")] == results
