"""An agent killed before, in and after every call of a hook: what two plugins have seen, and what is left then."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from unittest import mock

import pytest
import pytest_asyncio

from ai.backend.common.states import KernelEventReason, KernelStatus
from ai.backend.common.wire.agent import CreateKernels, DestroyKernel, KernelSpec, RestartKernel
from ai.backend.common.wire.reports import KernelObservation
from tests.component.agent.conftest import Bench, read_records
from tests.support.agent_node import Node
from tests.support.audit import leftovers
from tests.support.hook_journal import METHODS, append, read
from tests.support.hook_journal.rules import broken_rules

S, R = KernelStatus, KernelEventReason
CREATING = ("pre_create", "post_create")
ENDING = ("pre_terminate", "post_terminate")
PLUGINS = ("first", "second")
EVERY = [f"hook.{p}.{m}.{w}" for m in METHODS for p in PLUGINS for w in ("before", "after")]
Script = Mapping[str, Mapping[str, Sequence[str]]]


class HookedNode(Node):
    """A node with the two journaling plugins; ``script`` is plugin -> method -> what its calls do."""

    def __init__(self, directory: Path, script: Script | None = None, *, lifecycles: str = "") -> None:
        self.journal = directory / "plugins"
        self.journal.mkdir()
        tables = ""
        for plugin in PLUGINS:
            acts = (script or {}).get(plugin, {})
            lines = "".join(f"{method} = {json.dumps(list(todo))}\n" for method, todo in acts.items())
            tables += f'\n[plugins.{plugin}]\ndirectory = "{self.journal}"\n[plugins.{plugin}.script]\n{lines}'
        modules = [f"tests.support.hook_journal.{plugin}" for plugin in PLUGINS]
        node = f"allow-compute-plugins = {json.dumps(modules)}\nin-process-compute-plugins = {json.dumps(modules[:1])}"
        settings = f'{tables}\n[resource]\nallocation-order = ["first", "second"]'
        super().__init__(directory, node=node, lifecycles=lifecycles, settings=settings)

    async def spec(self) -> KernelSpec:
        async with asyncio.timeout(30):
            while True:
                await self.manager.next_heartbeat()
                beat = self.manager.heartbeats[-1]
                if set(PLUGINS) <= {slot.slot_name for slot in beat.slots}:
                    break
        image = next(i.name for i in beat.images if "python" in i.name)
        slots = {"cpu": "1", "mem": str(256 * 1024 * 1024), "first": "1", "second": "1"}
        return Bench.spec(image=image, slots=slots)

    async def create(self, spec: KernelSpec) -> None:
        await self.insist(lambda: self.commands.create_kernels(CreateKernels(kernels=[spec])))

    async def run_one(self) -> KernelSpec:
        spec = await self.spec()
        await self.create(spec)
        await self.until(spec.kernel_id, 1, S.RUNNING)
        return spec

    async def destroy(self, spec: KernelSpec, attempt: int = 1, *, forced: bool = False) -> KernelObservation:
        request = DestroyKernel(kernel_id=spec.kernel_id, attempt=attempt, forced=forced)
        await self.insist(lambda: self.commands.destroy_kernel(request))
        return await self.until(spec.kernel_id, attempt, S.TERMINATED)

    async def restart_after_death(self) -> None:
        await self.has_died()
        await self.start()

    async def is_done(self, method: str) -> None:
        """What was owed has been made up for."""
        await self.manager.wait_for(
            lambda o: any((t.method, t.state) == (method, "done") for t in o.hook_troubles), timeout_s=30
        )

    async def settled(self, spec: KernelSpec, *, may_repeat: Sequence[str] = ()) -> None:
        """The kernel has ended: wait until the plugins have too, and look at everything."""
        async with asyncio.timeout(20):
            while list(self.journal.glob("made.*")):  # noqa: ASYNC110  # a file has no event
                await asyncio.sleep(0.05)
            while list(leftovers(self.data_dir, spec.kernel_id)):  # noqa: ASYNC110  # the machine has no event
                await asyncio.sleep(0.1)
        assert broken_rules(self.journal, may_repeat=may_repeat) == []
        after = await self.spec()  # of another kernel: all of every device is to be had again
        whole = {"cpu": "1", "mem": str(256 * 1024 * 1024), "first": "4", "second": "4"}
        again = Bench.spec(image=after.image, slots=whole)
        await self.create(again)
        await self.until(again.kernel_id, 1, S.CREATING, S.RUNNING, S.ERROR, S.PENDING)
        # What is left of the script may deny or defer this one while it is being destroyed.
        request = DestroyKernel(kernel_id=again.kernel_id, attempt=1, forced=True)
        await self.insist(lambda: self.commands.destroy_kernel(request))
        await self.until(again.kernel_id, 1, S.TERMINATED, S.ERROR, S.PENDING)


def deadlines(node: Node) -> set[float]:
    """Every end of deferrals that the agent has written down, in seconds of the epoch."""
    earlier = [path.read_bytes() for path in node.data_dir.glob("records.db*")]  # SQLite's log holds what was before
    written = b"".join([*earlier, *read_records(node.data_dir, "kernels").values()])
    return {float(number) for number in re.findall(rb'"deferred_until":([0-9.]+)[,}]', written)}


Make = Callable[..., Awaitable[HookedNode]]


@pytest_asyncio.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[HookedNode] = []

    async def one(script: Script | None = None, *, crash_at: str = "", lifecycles: str = "") -> HookedNode:
        node = HookedNode(tmp_path, script, lifecycles=lifecycles)
        made.append(node)
        await node.open()
        await node.start(crash_at=crash_at)
        return node

    yield one
    for node in made:
        await node.close()


@pytest.mark.slow
@pytest.mark.parametrize("point", EVERY)
async def test_killed_around_a_call(make: Make, point: str) -> None:
    node = await make(crash_at=point)
    spec = await node.spec()
    create = CreateKernels(kernels=[spec])
    if point.split(".")[2] in CREATING:
        await node.give_one(lambda: node.commands.create_kernels(create))
        await node.restart_after_death()
        await node.create(spec)
    else:
        await node.create(spec)
        await node.until(spec.kernel_id, 1, S.RUNNING)
        destroy = DestroyKernel(kernel_id=spec.kernel_id, attempt=1)
        await node.give_one(lambda: node.commands.destroy_kernel(destroy))
        await node.restart_after_death()
    if point.split(".")[2] in CREATING:
        await node.until(spec.kernel_id, 1, S.RUNNING)
    await node.destroy(spec)
    await node.settled(spec)


@pytest.mark.slow
@pytest.mark.parametrize("point", [f"{p}:2" if p.split(".")[2] in CREATING else p for p in EVERY if "second" in p])
async def test_killed_in_a_restart_in_place(make: Make, point: str) -> None:
    node = await make(crash_at=point)
    spec = await node.run_one()
    restart = RestartKernel(kernel_id=spec.kernel_id, attempt=2)
    await node.give_one(lambda: node.commands.restart_kernel(restart))
    await node.restart_after_death()
    await node.until(spec.kernel_id, 2, S.RUNNING)
    await node.destroy(spec, 2)
    await node.settled(spec)
    for line in read(node.journal):
        if line["event"] == "begin" and line["kernel"] == spec.kernel_id:
            is_of_restart = (line["attempt"] == 1) == (line["method"] in ENDING)
            assert (line["previous"] == line["held"]) == is_of_restart, line
            assert line["cause"] in (("restart-in-place", "recover") if is_of_restart else ("create", "recover")), line


DENIED = [
    *(f"hook.first.{m}.{w}" for m in ("pre_create", "post_terminate") for w in ("before", "after")),
    "hook.second.pre_create.before",
    *(f"hook.second.post_terminate.{w}" for w in ("before", "after")),
    *(f"destroy.{step}.{w}" for step in ("hooks", "devices", "terminated") for w in ("before", "after")),
]


@pytest.mark.slow
@pytest.mark.parametrize("act", ["deny", "defer"])
@pytest.mark.parametrize("point", DENIED)
async def test_killed_in_a_creation_that_fails(make: Make, point: str, act: str) -> None:
    node = await make({"second": {"pre_create": [act, act]}}, crash_at=point)
    spec = await node.spec()
    await node.give_one(lambda: node.commands.create_kernels(CreateKernels(kernels=[spec])))
    await node.restart_after_death()
    await node.create(spec)
    ended = await node.until(spec.kernel_id, 1, S.ERROR, S.PENDING)
    expected = {"deny": (S.ERROR, R.CREATION_DENIED), "defer": (S.PENDING, R.CREATION_DEFERRED)}[act]
    assert (ended.status, ended.reason) == expected
    assert ended.retry_after_s == (None if act == "deny" else 0.7)
    await node.settled(spec)
    methods = {line["method"] for line in read(node.journal) if line.get("kernel") == spec.kernel_id}
    assert methods == {"pre_create", "post_terminate"}


@pytest.mark.slow
@pytest.mark.parametrize("point", ["hook.first.pre_terminate.before:3", "hook.first.pre_terminate.before:8"])
async def test_killed_while_a_termination_is_deferred(make: Make, point: str) -> None:
    script = {"first": {"pre_terminate": ["defer"] * 1000}}
    node = await make(script, crash_at=point, lifecycles="termination-deferral = 3.0")
    spec = await node.run_one()
    await node.give_one(lambda: node.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1)))
    await node.has_died()
    (deadline,) = deadlines(node)
    await node.start()
    ended = await node.until(spec.kernel_id, 1, S.TERMINATED)
    assert ended.at >= deadline - 0.1, "the deadline was not waited for"
    assert deadlines(node) <= {deadline}, "the deadline began anew"
    told = [t for o in node.manager.observations for t in o.hook_troubles]
    assert [(t.plugin, t.method, t.state, t.message) for t in told] == [("first", "pre_terminate", "overrun", "saving")]
    await node.settled(spec, may_repeat=["pre_terminate"])


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("plugin", PLUGINS)
async def test_killed_in_the_middle_of_a_call(make: Make, plugin: str, method: str) -> None:
    node = await make({plugin: {method: ["die"]}})
    spec = await node.spec()
    create = CreateKernels(kernels=[spec])
    await node.give_one(lambda: node.commands.create_kernels(create))
    if method in ENDING:
        await node.until(spec.kernel_id, 1, S.RUNNING)
        await node.give_one(lambda: node.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1)))
    await node.restart_after_death()
    if method in CREATING:
        await node.until(spec.kernel_id, 1, S.RUNNING)
    await node.destroy(spec)
    await node.settled(spec)


@pytest.mark.slow
@pytest.mark.parametrize("plugin", PLUGINS)
async def test_what_a_plugin_owes_survives_the_agent(make: Make, plugin: str) -> None:
    script = {plugin: {"post_create": ["fail"] * 2, "post_terminate": ["fail"] * 3}}
    node = await make(script, lifecycles="plugin-timeout = 0.7")
    spec = await node.run_one()
    assert node.process is not None
    node.process.kill()
    await node.restart_after_death()
    await node.is_done("post_create")
    await node.give_one(lambda: node.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1)))
    await node.until(spec.kernel_id, 1, S.TERMINATED)
    node.process.kill()
    await node.restart_after_death()
    await node.is_done("post_terminate")
    await node.settled(spec, may_repeat=["post_create", "post_terminate"])
    told = list(dict.fromkeys((t.method, t.state) for o in node.manager.observations for t in o.hook_troubles))
    assert told == [(m, s) for m in ("post_create", "post_terminate") for s in ("retrying", "done")]


@pytest.mark.parametrize(
    ("last_event", "agent", "state", "is_allowed"),
    [
        ("saving", 2, "before", True),  # the agent died with the save
        ("saving", 2, "after", True),  # ... or with its acknowledgement
        ("saved", 2, "before", False),
        ("end", 2, "before", True),
        ("end", 1, "before", False),
    ],
)
def test_the_rule_of_the_managed_state(
    tmp_path: Path, last_event: str, agent: int, state: str, is_allowed: bool
) -> None:
    line = {"plugin": "p", "kernel": "k", "attempt": 1, "method": "post_terminate", "cause": "create", "agent": 1}
    line |= {"workload": "", "held": ["d"], "state": {}, "version": 1}
    append(tmp_path, {**line, "event": "begin"})
    append(tmp_path, {**line, "event": last_event, "state": {"calls": 1}})
    found = {} if state == "before" else {"calls": 1}
    cause = "recover" if agent == 2 else "create"
    append(tmp_path, {**line, "event": "begin", "agent": agent, "cause": cause, "state": found})
    assert [rule for rule in broken_rules(tmp_path) if " found " in rule] == ([] if is_allowed else [mock.ANY])
