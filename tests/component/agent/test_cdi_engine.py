"""From a plugin's CDI specification to a container of an engine of the 29 line, and away again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from ai.backend.agent.composition import Agent
from ai.backend.agent.config.settings import INTRINSIC_PLUGINS
from ai.backend.agent.runtimes import load_runtime
from ai.backend.common.states import KernelStatus
from ai.backend.common.wire.agent import CreateKernels
from ai.backend.plugin.accelerator import DeviceMapping, PluginCapabilities, WorkloadConfig
from ai.backend.plugin.discovery import PluginSource, find_plugins
from tests.component.agent.test_hooks import acting
from tests.component.agent.test_process_runtime import MIB, RealBench, real
from tests.support.docker_engine import PYTHON_IMAGE, DockerEngine, cdi_engine_in, end_engine

__all__ = ["real"]
KIND = "acme.example/card"
_LOOK = "import os; print(os.path.exists('/dev/acme0'), os.environ.get('ACME_MODE'))"


@pytest.fixture
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerEngine]:
    made = cdi_engine_in(tmp_path_factory.mktemp("docker29"))
    process = made.start()
    try:
        made.ensure_image(PYTHON_IMAGE)
        yield made
    finally:
        end_engine(made, process)


def card(name: str) -> PluginSource:
    """A plugin whose devices are had by CDI alone."""

    async def say(_: Any) -> WorkloadConfig:
        return WorkloadConfig(devices=(DeviceMapping(source="", cdi_name=f"{KIND}={name}"),))

    async def cdi_spec(_: Any) -> dict[str, Any]:
        edits = {"deviceNodes": [{"path": "/dev/acme0", "hostPath": "/dev/null"}]}
        return {
            "cdiVersion": "0.6.0",
            "kind": KIND,
            "devices": [{"name": "c0", "containerEdits": edits}],
            "containerEdits": {"env": ["ACME_MODE=cdi"]},
        }

    plugin, _ = acting("acme", pre_create=say)
    plugin.capabilities = PluginCapabilities(cdi_provider=True)
    plugin.cdi_spec = cdi_spec  # type: ignore[attr-defined]  # the power of the flag above
    return PluginSource("acme", lambda: plugin)


def agent_with(bench: RealBench, *sources: PluginSource) -> Agent:
    settings = bench.settings()
    plugins = [*find_plugins((), (), INTRINSIC_PLUGINS), *sources]
    agent = Agent(settings, load_runtime(settings), bench.manager, plugins=plugins)
    bench.agents.append(agent)
    return agent


@pytest.mark.needs("cdi-engine")
async def test_a_specification_is_written_used_and_collected(real: RealBench, engine: DockerEngine) -> None:
    real.options = {
        "agent": {"runtime": "docker"},
        "runtime": {"docker-host": engine.host},
        "intervals": {"inventory": 0.5},
        "kernel-lifecycles": {"create-timeout": 60.0, "ready-timeout": 60.0},
    }
    folder = engine.directory / "cdi"
    agent = agent_with(real, card("c0"))
    await agent.start()
    slots = {"cpu": "1", "mem": str(256 * MIB), "acme": "1"}
    spec = await real.run(agent, slots=slots, image=PYTHON_IMAGE)
    assert (await real.say(agent, spec, _LOOK)).console == [["stdout", "True cdi\n"]]
    (path,) = folder.glob("*.json")
    written = json.loads(path.read_text())
    assert (written["kind"], written["cdiVersion"]) == (KIND, "0.5.0"), "the lowest version that the fields need"
    await real.destroy(agent, spec)
    await agent.stop()
    unknown = agent_with(real, card("c1"))
    await unknown.start()
    refused = real.spec(slots=slots, image=PYTHON_IMAGE)
    await unknown.commands.create_kernels(CreateKernels(kernels=[refused]))
    ended = await real.until(refused, KernelStatus.ERROR)
    assert f"the plugin acme: '{KIND}=c1' cannot be had" in (ended.message or "")
    await unknown.stop()
    without = agent_with(real)
    await without.start()
    async with asyncio.timeout(20):
        while list(folder.glob("*.json")):
            await real.manager.next_heartbeat()
    await without.stop()
