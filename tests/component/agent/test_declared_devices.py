"""A family of one's own data file on a real agent: from the tree of the node to a session, and to an ill device."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from ai.backend.common.states import RunStatus
from tests.component.agent.test_process_runtime import MIB, RealBench

FAMILY = """
key = "chip"
name = "Chip"
[find]
by = "class"
class = "chip"
[[models]]
name = "C1"
[[healthy-if]]
value = "state"
is-one-of = ["ready"]
[env]
CHIPS = "{index}"
"""


class ChipBench(RealBench):
    """A node with two chips, which the plugin ``sysfs`` serves in a process of its own."""

    def __init__(self, place: Path) -> None:
        super().__init__(place / "agent")
        self.chips = place / "sys/class/chip"
        for n in range(2):
            (self.chips / f"chip{n}").mkdir(parents=True)
            self.set(n, "ready")
        (place / "chip.toml").write_text(FAMILY)
        self.options = {
            "agent": {"allow-compute-plugins": ["sysfs"]},
            "intervals": {"inventory": 0.2},
            "plugins": {"sysfs": {"sysfs-root": str(place / "sys"), "families": [str(place / "chip.toml")]}},
        }

    def set(self, n: int, state: str) -> None:
        (self.chips / f"chip{n}/state").write_text(state)

    async def offers(self, amount: str) -> None:
        async with asyncio.timeout(30):
            while {s.slot_name: str(s.amount) for s in self.manager.heartbeats[-1].slots}.get("chip.device") != amount:
                await self.manager.next_heartbeat()


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[ChipBench]:
    made = ChipBench(tmp_path)
    yield made
    await made.close()


async def test_a_session_gets_declared_devices_and_an_ill_one_is_taken_out(node: ChipBench) -> None:
    agent = await node.start()
    await node.manager.next_heartbeat()
    await node.offers("2")
    slots = {"cpu": "1", "mem": str(256 * MIB), "chip.device": "1"}
    spec = await node.run(agent, slots=slots)
    code = "import os; print(os.environ['CHIPS'], open('/home/config/resource.txt').read())"
    result = await node.say(agent, spec, code)
    assert result.status is RunStatus.FINISHED
    text = result.console[0][1]
    held = int(text[0])
    assert f"CHIP_GLOBAL_DEVICE_IDS=0:chip{held}" in text
    await node.destroy(agent, spec)
    node.set(0, "broken")
    await node.offers("1")
    node.set(0, "ready")
    await node.offers("2")
