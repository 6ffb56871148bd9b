"""`backend.ai mgr scheduler replay` decides on a dump without a database."""

from __future__ import annotations

import random
from pathlib import Path

from click.testing import CliRunner

from ai.backend.core.scheduling.decide import decide
from ai.backend.core.scheduling.plan import describe
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import Snapshot, dump_json
from ai.backend.manager.commands.scheduler import scheduler
from tests.unit.core.scheduling.builders import NOW, agent, session, slots


def _replay(path: Path, snapshot: Snapshot, *options: str) -> str:
    path.write_bytes(dump_json(snapshot))
    now = NOW.replace(tzinfo=None).isoformat()
    result = CliRunner().invoke(scheduler, ["replay", str(path), "--now", now, *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_dumped_snapshot_gives_the_same_plan(tmp_path: Path) -> None:
    agents = tuple(agent(f"i-{n}", cuda=2) for n in range(4))
    pending = tuple(session(f"s{n}", slots(cpu=2, cuda_device=1), age_s=n) for n in range(9))
    snapshot = Snapshot(resource_group="default", agents=agents, pending=pending)
    live = decide(snapshot, Policy(), now=NOW, rng=random.Random(5))
    assert _replay(tmp_path / "dump.json", snapshot, "--seed", "5") == describe(snapshot, live) + "\n"


def test_the_command_prints_a_line_for_each_session(tmp_path: Path) -> None:
    pending = (session("fits", slots(cpu=2)), session("large", slots(cpu=9)))
    snapshot = Snapshot(resource_group="default", agents=(agent("i-1"),), pending=pending)
    assert _replay(tmp_path / "dump.json", snapshot, "--placement", "concentrated").splitlines() == [
        "placed   fits: i-1 (cpu on 0, 1)",
        "waiting  large: needs 9 cpu on one node; the largest node, i-1, has 4 [never-fits]",
    ]
