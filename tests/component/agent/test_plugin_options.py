"""Options of sessions for plugins: they reach every hook, and images are loaded by them before a workload exists."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from ai.backend.agent.composition import Agent
from ai.backend.common.states import KernelStatus
from ai.backend.common.wire.agent import CreateKernels, DestroyKernel
from ai.backend.plugin.accelerator import PluginOptions
from ai.backend.plugin.discovery import find_plugins
from tests.component.agent.conftest import Bench
from tests.component.agent.test_hooks import acting

S = KernelStatus
MOCK = {"in-process": "ai.backend.accelerator.mock", "host": "ai.backend.accelerator.mock.isolated"}


class Options(PluginOptions):
    level: int = Field(default=0, ge=0, le=3, description="Level.")


async def test_every_hook_gets_the_options_and_other_plugins_do_not(bench: Bench) -> None:
    cuda, of_cuda = acting("cuda")
    cuda.options_model = Options
    rocm, of_rocm = acting("rocm")
    bench.plugins = [cuda, rocm]
    agent = await bench.start()
    spec = await bench.run(agent, slots={"cuda": "1", "rocm": "1"}, plugin_options={"cuda": {"level": 2}})
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1))
    await bench.until(spec, S.TERMINATED)
    assert [(method, dict(context.options)) for method, context in of_cuda] == [
        (method, {"level": 2}) for method in ("pre_create", "post_create", "pre_terminate", "post_terminate")
    ]
    assert all(context.options == {} for _, context in of_rocm)
    reported = {plugin.name: plugin.options_schema for plugin in bench.manager.heartbeats[-1].plugins}
    assert reported["rocm"] is None
    assert (reported["cuda"] or {})["properties"]["level"]["maximum"] == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [({"cuda": {"level": 9}}, "level: 9 is greater than the maximum of 3"), ({"rocm": {"a": 1}}, "it takes none")],
)
async def test_options_that_this_version_does_not_take_deny_before_any_hook(
    bench: Bench, options: dict[str, Any], message: str
) -> None:
    cuda, of_cuda = acting("cuda")
    cuda.options_model = Options
    rocm, of_rocm = acting("rocm")
    bench.plugins = [cuda, rocm]
    agent = await bench.start()
    spec = bench.spec(slots={"cuda": "1", "rocm": "1"}, plugin_options=options)
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    ended = await bench.until(spec, S.ERROR)
    assert message in (ended.message or "")
    refused = of_cuda if "cuda" in options else of_rocm
    assert "pre_create" not in [method for method, _ in refused]


@pytest.mark.parametrize("place", MOCK)
async def test_an_image_is_loaded_before_the_session_starts(bench: Bench, tmp_path: Path, place: str) -> None:
    images, state = tmp_path / "images", tmp_path / "state.json"
    images.mkdir()
    (images / "fft.bit").write_bytes(b"bits")
    (images / "link.bit").symlink_to("/etc/passwd")
    bench.options = {
        "agent": {"id": "i-test", "data-dir": str(bench.data_dir), "in-process-compute-plugins": []}
        if place == "host"
        else {"id": "i-test", "data-dir": str(bench.data_dir)},
        "plugins": {"mock": {"images-dir": str(images), "state-path": str(state)}},
        "kernel-lifecycles": {"plugin-timeout": 30.0},
    }
    agent = Agent(bench.settings(), bench.runtime, bench.manager, plugins=find_plugins([MOCK[place]], (), ()))
    await agent.start()
    await bench.manager.next_heartbeat()
    try:
        async with asyncio.timeout(60):
            while not any(slot.slot_name == "mock.device" for slot in bench.manager.heartbeats[-1].slots):
                await bench.manager.next_heartbeat()
        asked = {"mock": {"image": "fft.bit", "mode": "exact"}}
        spec = await bench.run(agent, slots={"mock.device": "1"}, plugin_options=asked)
        loaded = json.loads(state.read_text())["images"]
        assert list(loaded.values()) == [str(images / "fft.bit")]
        workload = next(w for w in bench.runtime.specs.values() if str(w.key.kernel_id) == spec.kernel_id)
        assert workload.config.env_vars["MOCK_MODE"] == "exact"
        for name in ("none.bit", "link.bit"):
            refused = bench.spec(slots={"mock.device": "1"}, plugin_options={"mock": {"image": name}})
            await agent.commands.create_kernels(CreateKernels(kernels=[refused]))
            assert f"there is no image '{name}'" in ((await bench.until(refused, S.ERROR)).message or "")
        outside = bench.spec(slots={"mock.device": "1"}, plugin_options={"mock": {"image": "../images/fft.bit"}})
        await agent.commands.create_kernels(CreateKernels(kernels=[outside]))
        assert "does not match" in ((await bench.until(outside, S.ERROR)).message or "")
    finally:
        await agent.stop()
