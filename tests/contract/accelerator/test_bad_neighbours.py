"""A plugin that misbehaves, in a host process: the agent stays up, the cause is seen, and the others work."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ai.backend.agent.composition import Agent
from ai.backend.agent.devices import plugins
from ai.backend.common.errors import InsufficientResource, InvalidAllocation
from ai.backend.common.states import KernelStatus
from ai.backend.common.wire.agent import CreateKernels, DestroyKernel
from ai.backend.common.wire.reports import AgentReport, PluginReport
from ai.backend.plugin.discovery import PluginSource, load_plugin
from tests.component.agent.conftest import Bench
from tests.support.neighbours import ANSWERS, REFERENCE

S = KernelStatus
DEADLINE_S = 1.0


def is_alive(pid: int) -> bool:
    return pid != os.getpid() and Path(f"/proc/{pid}").exists()


class Street(Bench):
    """An agent with a plugin ``cpu`` that works, and a neighbour ``bad`` in a host process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "agent")
        self.folder = folder
        self.reference = REFERENCE
        self.faulty = folder / "faulty"
        self.journal = folder / "journal"
        self.isolated = True

    def misbehave(self, **faults: str) -> None:
        """Say what is wrong from the next start on."""
        self.options = {
            "kernel-lifecycles": {"plugin-timeout": DEADLINE_S, "termination-deferral": 0.3},
            "intervals": {"inventory": 0.1, "statistics": 0.1},
            "plugins": {"bad": {"faults": faults, "while_file": str(self.faulty), "journal": str(self.journal)}},
        }
        self.faulty.touch()

    def agent(self) -> Agent:
        def here() -> Any:
            assert not self.isolated, "a plugin that is isolated must not be imported here"
            return load_plugin(self.reference)

        sources = [
            PluginSource("cpu", lambda: self.plugins[0]),
            PluginSource("neighbour", here, self.reference, isolated=self.isolated),
        ]
        agent = Agent(self.settings(), self.runtime, self.manager, plugins=sources)
        self.agents.append(agent)
        return agent

    async def report(self) -> AgentReport:
        await self.manager.next_heartbeat()
        return self.manager.heartbeats[-1]

    async def neighbour(self) -> PluginReport:
        return next(p for p in (await self.report()).plugins if p.name in ("bad", "neighbour"))

    async def seen(self, *words: str) -> PluginReport:
        """The neighbour's report once its reason has all of these words."""
        found: list[str | None] = []
        try:
            async with asyncio.timeout(10):
                while True:
                    report = await self.neighbour()
                    found.append(report.reason)
                    if not report.healthy and all(word in (report.reason or "") for word in words):
                        return report
        except TimeoutError:
            raise AssertionError(f"no report has {words}; there were {sorted(set(map(str, found)))}") from None

    async def healthy(self) -> PluginReport:
        async with asyncio.timeout(30):
            while "bad.device" not in await self.offered() or not (report := await self.neighbour()).healthy:
                pass
        return report

    async def offered(self) -> dict[str, str]:
        return {slot.slot_name: slot.amount for slot in (await self.report()).slots}

    def hosts(self) -> list[int]:
        """Process ids of the hosts in the order of their first call."""
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        return list(dict.fromkeys(int(line.split()[1]) for line in lines))

    def calls(self, method: str) -> int:
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        return sum(line.split()[0] == method for line in lines)


@pytest.fixture
async def street(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Street]:
    # What fails is looked at again soon: most of these tests wait for that.
    monkeypatch.setattr(plugins, "RETRY_FIRST_S", 0.2)
    made = Street(tmp_path)
    made.misbehave()
    yield made
    await made.close()
    left = [pid for pid in made.hosts() if is_alive(pid)]
    assert left == [], "a host outlived its agent"


# ---- what happens on import

IMPORTS = {
    "no-module": ("import no_such_module", "No module named 'no_such_module'"),
    "syntax": ("def (", "SyntaxError"),
    "exit": ("raise SystemExit(3)", "SystemExit: 3"),
    "os-exit": ("import os; os._exit(3)", "exited with status 3"),
    "crash": ("import ctypes; ctypes.string_at(0)", "killed by SIGSEGV"),
    "abort": ("import os; os.abort()", "killed by SIGABRT"),
    "loop": ("import time; time.sleep(60)", "took longer than 1 s"),
    "empty": ("", "shows 0 compute plugins"),
    "old": (
        "from tests.support.neighbours import Neighbour\nclass Plugin(Neighbour):\n    spi_version = 20",
        "written for version 20",
    ),
}


@pytest.mark.parametrize("name", IMPORTS)
async def test_a_plugin_that_cannot_be_imported(
    street: Street, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    code, reason = IMPORTS[name]
    module = f"vendor_{name.replace('-', '_')}"
    (street.folder / f"{module}.py").write_text(code)
    monkeypatch.syspath_prepend(street.folder)
    street.reference = module
    agent = await street.start()
    assert not (await street.seen(reason)).healthy
    assert any(reason in record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    await street.run(agent)


# ---- starting


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        ({"construct": "raise"}, "RuntimeError: no constructor today"),
        ({"init": "raise"}, "OSError: the driver is gone"),
        ({"init": "exit"}, "SystemExit: 5"),
        ({"init": "hang"}, "init took longer than 1 s"),
        ({"init": "stubborn"}, "init took longer than 1 s"),
        ({"init": "block"}, "init took longer than 1 s"),
        ({"init": "die"}, "exited with status 7"),
        ({"init": "crash"}, "killed by SIGSEGV"),
    ],
    ids=str,
)
async def test_a_plugin_that_cannot_be_started(street: Street, faults: dict[str, str], reason: str) -> None:
    street.misbehave(**faults)
    agent = await street.start()
    await street.seen(reason)
    await street.run(agent)
    street.faulty.unlink()
    await street.healthy()
    await street.run(agent, slots={"bad.device": "1"})


async def test_bad_settings_name_the_key(street: Street) -> None:
    street.options["plugins"] = {"bad": {"fautls": {}}}
    agent = await street.start()
    await street.seen("plugins.bad.fautls", "there is no such key")
    await street.run(agent)


# ---- calls

LISTING = ("list_devices", "configurable_slots", "available_slots", "variant_namespaces")
KINDS = {
    "raise": "failed: OSError: the driver is gone",
    "exit": "failed: SystemExit: 5",
    "hang": "took longer than 1 s",
    "block": "blocked it for longer than its deadline",
    "die": "exited with status 7",
    "crash": "killed by SIGSEGV",
}
CALLS = [*(("list_devices", kind) for kind in KINDS), ("available_slots", "block"), ("gather_node_metrics", "raise")]


@pytest.mark.parametrize(("method", "kind"), CALLS)
async def test_a_call_that_fails(street: Street, method: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ai.backend")
    street.misbehave(**{method: kind})
    street.faulty.unlink()
    agent = await street.start()
    await street.healthy()
    mine = await street.run(agent, slots={"bad.device": "1"})
    street.faulty.touch()
    if method == "gather_node_metrics" and kind == "raise":
        await street.seen("the driver is gone")
    else:
        await street.seen(KINDS[kind])
    if kind == "crash":
        assert any("string_at" in r.getMessage() for r in caplog.records), "where it crashed is in the log"
    assert any(KINDS[kind].split(": ")[-1] in r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING)
    await street.run(agent)
    street.faulty.unlink()
    await street.healthy()
    assert (await street.offered())["bad.device"] == "2"
    assert [d["device_id"] for d in (await street.report()).devices if d["device_name"] == "bad"] == ["bad-0", "bad-1"]
    # What runs was not touched, and what it holds is not given twice.
    assert mine.kernel_id in {k.kernel_id for k in (await street.report()).kernels}
    await street.run(agent, slots={"bad.device": "1"})
    with pytest.raises(InsufficientResource):
        await agent.commands.create_kernels(CreateKernels(kernels=[street.spec(slots={"bad.device": "1"})]))


LEAVING = ("detach", "spawn")
"""These answer well, and leave processes behind."""
NONSENSE = [(method, kind, False) for method in LISTING for kind in ANSWERS[method] if kind not in LEAVING]
TRAVELLING = ("float", "generator", "gigantic", "wrong-type")
"""What another kind of mistake would let through on the way from a host."""


@pytest.mark.parametrize(
    ("method", "kind", "isolated"), [*NONSENSE, *(("list_devices", kind, True) for kind in TRAVELLING)]
)
async def test_an_answer_that_is_nonsense(street: Street, method: str, kind: str, isolated: bool) -> None:
    street.isolated = isolated
    street.misbehave(**{method: kind})
    street.faulty.unlink()
    agent = await street.start()
    await street.healthy()
    assert await street.offered() == {"cpu": "4", "bad.device": "2"}
    street.faulty.touch()
    report = await street.seen(f"{method}: ")
    assert len(report.reason or "") <= 500
    assert await street.offered() == {"cpu": "4", "bad.device": "2"}, "the last good answer stays"
    await street.run(agent)
    street.faulty.unlink()
    await street.healthy()


@pytest.mark.parametrize("kind", ["negative", "twice", "slot-of-cpu"])
async def test_nonsense_from_the_beginning_offers_nothing(street: Street, kind: str) -> None:
    street.misbehave(list_devices=kind)
    agent = await street.start()
    await street.seen("list_devices: ")
    assert await street.offered() == {"cpu": "4"}
    await street.run(agent)


async def test_what_only_people_read_is_left_out(street: Street) -> None:
    street.misbehave(get_node_info="huge")
    agent = await street.start()
    await street.seen("get_node_info: x is 100000 characters long; 1024 are allowed")
    await street.run(agent, slots={"bad.device": "1"})
    street.faulty.unlink()
    await street.healthy()


@pytest.mark.parametrize(("fault", "reason"), [("raise", "OSError: no map"), ("unknown", "no-such-kind")])
async def test_a_map_that_cannot_be_made(street: Street, fault: str, reason: str) -> None:
    street.isolated = False
    street.misbehave(alloc_map_spec=fault)
    agent = await street.start()
    await street.seen("alloc_map_spec", reason)
    assert await street.offered() == {"cpu": "4"}
    await street.run(agent)


@pytest.mark.parametrize("isolated", [True, False])
async def test_ids_that_change_under_a_workload(street: Street, isolated: bool) -> None:
    street.isolated = isolated
    street.misbehave(ids="change")
    street.faulty.unlink()
    agent = await street.start()
    await street.healthy()
    mine = await street.run(agent, slots={"bad.device": "1"}, devices={"bad.device": {"bad-0": "1"}})
    street.faulty.touch()
    await street.seen("list_devices: bad-0 is listed no more, and a kernel holds it")
    assert (await street.offered())["bad.device"] == "0", "the devices are as before, and none of them is listed"
    devices = {d["device_id"]: d["health"] for d in (await street.report()).devices if d["device_name"] == "bad"}
    assert devices == {"bad-0": "unhealthy", "bad-1": "unhealthy"}
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=mine.kernel_id, attempt=1))
    await street.until(mine, S.TERMINATED)
    await street.healthy()
    names = {d["device_id"] for d in (await street.report()).devices if d["device_name"] == "bad"}
    assert names == {"other-0", "other-1"}, "nobody holds the old ones any more"


# ---- alloc maps of a plugin's own


@pytest.mark.parametrize("isolated", [True, False])
async def test_a_map_of_its_own_is_asked(street: Street, isolated: bool) -> None:
    street.isolated = isolated
    street.options["plugins"]["bad"]["own_map"] = True
    agent = await street.start()
    await street.healthy()
    first = street.spec(slots={"bad.device": "1"})
    second = street.spec(slots={"bad.device": "1"})
    await agent.commands.create_kernels(CreateKernels(kernels=[first]))
    await agent.commands.create_kernels(CreateKernels(kernels=[second]))
    assert (await street.until(first, S.RUNNING)).devices == {"bad.device": {"bad-1": "1"}}
    assert (await street.until(second, S.RUNNING)).devices == {"bad.device": {"bad-0": "1"}}
    with pytest.raises(InsufficientResource):
        await agent.commands.create_kernels(CreateKernels(kernels=[street.spec(slots={"bad.device": "1"})]))
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=first.kernel_id, attempt=1))
    await street.until(first, S.TERMINATED)
    await street.run(agent, slots={"bad.device": "1"})


LIES = {
    "raise": "RuntimeError: no map today",
    "none": "NoneType instead of a DeviceAllocation",
    "foreign": "the device 'of somebody else', which was not to be given",
    "more": "gave 2 bad.device where 1 were asked for",
    "twice": "has not 1 bad.device free",
    "block": "its alloc map took longer than 1 s",
}


@pytest.mark.parametrize(("lie", "isolated"), [*((lie, True) for lie in LIES), ("none", False), ("more", False)])
async def test_a_map_that_lies(street: Street, lie: str, isolated: bool) -> None:
    street.isolated = isolated
    street.misbehave(allocate=lie)
    street.options["plugins"]["bad"]["own_map"] = True
    agent = await street.start()
    await street.neighbour()
    if lie == "twice":
        await street.run(agent, slots={"bad.device": "1"})
    with pytest.raises(InvalidAllocation):
        await agent.commands.create_kernels(CreateKernels(kernels=[street.spec(slots={"bad.device": "1"})]))
    await street.seen(LIES[lie])
    await street.run(agent)


# ---- hooks


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raise", "OSError: the driver is gone"),
        ("block", "took longer than 1 s"),
        ("crash", "killed by SIGSEGV"),
        ("deny", "no, never"),
    ],
)
async def test_a_hook_that_fails_ends_its_kernel_alone(street: Street, fault: str, reason: str) -> None:
    street.misbehave(pre_create=fault)
    agent = await street.start()
    spec = street.spec(slots={"bad.device": "1", "cpu": "1"})
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    assert reason in ((await street.until(spec, S.ERROR)).message or "")
    await street.run(agent, slots={"cpu": "1"})
    street.faulty.unlink()
    async with asyncio.timeout(30):
        while (await street.offered()).get("bad.device", "0") == "0":
            pass
    await street.run(agent, slots={"bad.device": "2", "cpu": "1"})
    await street.healthy()


async def test_a_hook_may_defer(street: Street) -> None:
    street.misbehave(pre_create="defer", pre_terminate="defer-end")
    agent = await street.start()
    spec = street.spec(slots={"bad.device": "1"})
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    deferred = await street.until(spec, S.PENDING)
    assert (deferred.message, deferred.retry_after_s) == ("not now", 7.0)
    street.faulty.unlink()
    mine = await street.run(agent, slots={"bad.device": "1"})
    street.faulty.touch()
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=mine.kernel_id, attempt=1))
    await street.until(mine, S.TERMINATED)
    assert street.calls("pre_terminate") > 1


async def test_a_workload_outlives_the_death_of_its_plugin(street: Street) -> None:
    agent = await street.start()
    await street.healthy()
    mine = await street.run(agent, slots={"bad.device": "1", "cpu": "1"})
    (pid,) = street.hosts()
    os.kill(pid, signal.SIGKILL)
    await street.seen("killed by SIGKILL")
    assert mine.kernel_id in {k.kernel_id for k in (await street.report()).kernels}
    await street.healthy()
    assert len(street.hosts()) == 2
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=mine.kernel_id, attempt=1))
    await street.until(mine, S.TERMINATED)
    assert street.calls("post_terminate") == 1


async def test_a_plugin_that_dies_again_and_again_is_started_ever_more_rarely(
    street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "RETRY_FIRST_S", 1.0)
    street.misbehave(list_devices="die")
    agent = await street.start()
    await street.seen("exited with status 7")
    await asyncio.sleep(4.0)
    assert 2 <= len(street.hosts()) <= 4, "after 1, 2 and 4 seconds"
    await street.run(agent)


async def test_calls_that_hang_in_threads_end_the_host(street: Street) -> None:
    street.misbehave(list_devices="thread")
    street.faulty.unlink()
    await street.start()
    await street.healthy()
    street.faulty.touch()
    await street.seen("list_devices missed its deadline 3 times in a row")


# ---- output and news


async def test_what_a_host_prints_is_logged_and_bounded(street: Street, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ai.backend")
    street.misbehave(init="print")
    await street.start()
    await street.healthy()
    async with asyncio.timeout(30):
        while not any("prints too much" in r.getMessage() for r in caplog.records):
            await street.report()
    lines = [r.getMessage() for r in caplog.records if r.name == "ai.backend.pluginhost.process"]
    assert len(lines) <= 110
    assert max(map(len, lines)) <= 1100


async def test_news_of_a_device_come_through(street: Street) -> None:
    street.misbehave(health="Xid 79")
    street.faulty.unlink()
    await street.start()
    assert (await street.offered())["bad.device"] == "2"
    street.faulty.touch()
    async with asyncio.timeout(30):
        while (await street.offered())["bad.device"] != "1":
            pass
    reasons = {d["device_id"]: d["health_reason"] for d in (await street.report()).devices if d["device_name"] == "bad"}
    assert reasons == {"bad-0": "", "bad-1": "Xid 79"}


async def test_the_host_gets_no_secrets_of_the_agent(street: Street, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    await street.start()
    await street.healthy()
    (pid,) = street.hosts()
    environment = Path(f"/proc/{pid}/environ").read_bytes()  # noqa: ASYNC240  # procfs does not block
    assert b"AWS_SECRET" not in environment
    assert b"CUDA_VISIBLE_DEVICES=0" in environment


async def test_a_plugin_that_says_it_may_block_gets_a_host(street: Street) -> None:
    street.isolated = False
    street.reference = "tests.support.neighbours:BlockingNeighbour"
    await street.start()
    await street.healthy()
    # It was imported here, where the settings said so; it is called there.
    assert os.getpid() not in street.hosts()


async def test_kernels_come_and_go_while_hosts_die(street: Street) -> None:
    """Whatever is cut off in the middle, nothing is leaked, nothing is given twice, and every kernel ends."""
    street.options["plugins"]["bad"]["devices"] = 4
    agent = await street.start()
    await street.healthy()
    rng = random.Random(7)
    specs = []
    for number in range(16):
        spec = street.spec(slots={"bad.device": "1"})
        try:
            await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
        except InsufficientResource:
            await asyncio.sleep(0.2)
            continue
        specs.append(spec)
        await asyncio.sleep(rng.random() * 0.1)
        if number in (3, 9):
            os.kill(street.hosts()[-1], signal.SIGKILL)
        if len(specs) > 2:
            await agent.commands.destroy_kernel(DestroyKernel(kernel_id=specs[-3].kernel_id, attempt=1))
    assert len(specs) >= 4
    for spec in specs:
        await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1))
    for spec in specs:
        ended = await street.manager.wait_for(
            lambda o, spec=spec: o.kernel_id == spec.kernel_id and o.status in (S.TERMINATED, S.ERROR, S.PENDING), 20.0
        )
        assert ended.status is not S.ERROR or "host process" in (ended.message or "")
    await street.healthy()
    assert street.runtime.specs == {}
    everything = street.spec(slots={"bad.device": "4"})
    await agent.commands.create_kernels(CreateKernels(kernels=[everything]))
    await street.until(everything, S.RUNNING)
