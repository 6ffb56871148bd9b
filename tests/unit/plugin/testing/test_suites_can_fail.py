"""The contract suites notice plugins and runtimes that break their promises; of plugins, see also test_checks.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ai.backend.accelerator.mock.declaration import default_declaration
from ai.backend.accelerator.mock.plugin import MockPlugin
from ai.backend.plugin.runtime import WorkloadExit, WorkloadKey, WorkloadSpec, WorkloadView
from ai.backend.plugin.testing.accelerator.checks import CHECKS, CheckFailed
from ai.backend.plugin.testing.accelerator.contract import ComputePluginContract
from ai.backend.plugin.testing.runtime.contract import RuntimeContract
from ai.backend.plugin.testing.runtime.fake_runtime import FAKE_IMAGE, FakeRuntime


def suite() -> dict[str, Callable[[ComputePluginContract, MockPlugin], Awaitable[None]]]:
    return {name: test for name, test in vars(ComputePluginContract).items() if name.startswith("test_")}


def test_every_check_is_a_test() -> None:
    assert set(suite()) == {f"test_{check.name}" for check in CHECKS}


async def test_a_bad_plugin_fails_its_test() -> None:
    class Silent(MockPlugin):
        version = ""

    test = suite()["test_its_key_is_a_slot_name"]
    await test(ComputePluginContract(), MockPlugin(declaration=default_declaration()))
    with pytest.raises(CheckFailed, match="version is ''"):
        await test(ComputePluginContract(), Silent(declaration=default_declaration()))


async def test_what_a_plugin_does_not_claim_is_skipped() -> None:
    test = suite()["test_process_metrics_are_of_the_processes_asked_for"]
    with pytest.raises(pytest.skip.Exception, match="capability: the plugin has no metrics of processes"):
        await test(ComputePluginContract(), MockPlugin(declaration=default_declaration()))


class TwiceRuntime(FakeRuntime):
    """Starts a second workload for the same key."""

    async def create(self, spec: WorkloadSpec) -> WorkloadView:
        return await self._create(spec)


class ImmortalRuntime(FakeRuntime):
    """Says that it stopped what it did not."""

    async def stop(self, key: WorkloadKey, *, grace_s: float) -> WorkloadExit | None:
        return WorkloadExit(code=0)


class LeakyRuntime(FakeRuntime):
    """Leaves the record behind."""

    async def remove(self, key: WorkloadKey, *, keep_home: bool = False) -> None:
        return


class Impatient(RuntimeContract):
    image = FAKE_IMAGE
    patience_s = 0.2


RUNTIMES = Impatient()


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (TwiceRuntime, RUNTIMES.test_create_is_idempotent),
        (ImmortalRuntime, RUNTIMES.test_stop_ends_it_and_the_channel_says_so),
        (LeakyRuntime, RUNTIMES.test_remove_leaves_nothing_and_may_be_repeated),
    ],
)
async def test_a_bad_runtime_fails(kind: type[FakeRuntime], test: Callable[[FakeRuntime], Awaitable[None]]) -> None:
    runtime = kind()
    await runtime.setup()
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await test(runtime)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
