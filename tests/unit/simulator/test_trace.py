"""Traces in simulated time."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.core.scheduling.policy import ORDERS, PLACEMENTS, Policy
from ai.backend.core.scheduling.snapshot import Snapshot, dump_json
from ai.backend.simulator.trace import Job, Replay, main, read_trace
from tests.unit.core.scheduling.builders import agent

CLUSTER = Snapshot(resource_group="g", agents=tuple(agent(f"i-{n}", cpu=8, cuda=2) for n in range(3)))


def jobs(count: int, seed: int = 1) -> list[Job]:
    rng = random.Random(seed)
    return [
        Job(
            at=rng.uniform(0, 3600),
            runs=rng.uniform(60, 1800),
            slots={"cpu": str(rng.randint(1, 6)), "cuda.device": str(rng.randint(0, 2))},
            scope=("d", f"p{rng.randint(0, 2)}", "u"),
        )
        for _ in range(count)
    ]


def test_one_after_the_other() -> None:
    trace = [Job(at=0, runs=100, slots={"cpu": "8"}) for _ in range(6)]
    outcome = Replay(CLUSTER, Policy(), seed=1).run(trace)
    assert (outcome.done, outcome.stuck, sorted(outcome.waits)) == (6, 0, [0.0] * 3 + [100.0] * 3)
    assert outcome.ended_at == 200.0


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_every_job_runs_though_agents_fail_and_the_same_seed_tells_the_same_story(order: str) -> None:
    for placement in sorted(PLACEMENTS):
        stories = [
            Replay(CLUSTER, Policy(order=order, placement=placement), seed=5, fail_every_s=1200).run(jobs(60)).as_dict()
            for _ in range(2)
        ]
        assert stories[0] == stories[1]
        assert stories[0]["done"] == 60
        assert stories[0]["failures"] > 0


def test_what_never_fits_is_told_and_ends_the_day() -> None:
    outcome = Replay(CLUSTER, Policy(), seed=1).run([Job(at=0, runs=1, slots={"cpu": "9"})])
    assert (outcome.done, outcome.stuck) == (0, 1)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.json").write_bytes(dump_json(CLUSTER))
    (tmp_path / "t.json").write_text(json.dumps([{"at": 0, "runs": 60, "slots": {"cpu": "2"}}]))
    assert main([str(tmp_path / "s.json"), str(tmp_path / "t.json"), "--fail", "100"]) == 0
    assert json.loads(capsys.readouterr().out)["done"] == 1


@pytest.mark.parametrize("text", [b"", b"{}", b'[{"at": 0}]', b'[{"at": 0, "runs": 1, "slots": {}, "x": 1}]'])
def test_anything_else_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidInput):
        read_trace(text)
