"""NVML's own binding against a library that answers in the true layouts, and recordings made through it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped,unused-ignore]  # the binding has no types
import pytest

from ai.backend.accelerator.cuda import gpus, nvml
from ai.backend.accelerator.cuda.library import plain
from ai.backend.accelerator.cuda.plugin import CudaPlugin
from ai.backend.accelerator.cuda.replay import Recording, ReplayHost, ReplayNvml
from ai.backend.common.devices import DeviceHealth
from ai.backend.common.errors import Forbidden, PluginError
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.plugin.accelerator import AbstractComputePlugin, CdiProvider, HealthWatching, Partitionable, StatContext
from ai.backend.plugin.testing.accelerator.contract import ComputePluginContract
from ai.backend.pluginhost import launch
from tests.contract.accelerator.test_hosted import HostedContract
from tests.support.cuda import A100, H100, T4, Machine, build_stub, plugin_on

GPU, CUT = "GPU-00000000-0000-4000-8000-000000000000", "GPU-00000001-0000-4000-8000-000000000000"
FIRST, SECOND = "MIG-00000010-0000-4000-8000-000000000000", "MIG-00000011-0000-4000-8000-000000000000"


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stub(tmp_path_factory.mktemp("nvml"))


def python(stub: Path | None, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the loader keeps one library of a name."""
    env: Mapping[str, str] = {**os.environ, "LD_LIBRARY_PATH": str(stub or ""), **environ}
    return subprocess.run(
        [sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=50, check=False
    )


@pytest.fixture(scope="module")
def recording(stub: Path) -> Path:
    done = python(stub, "-m", "ai.backend.accelerator.cuda.record")
    assert done.returncode == 0, done.stderr
    path = stub / "recording.json"
    path.write_text(done.stdout)
    return path


def library(stub: Path, body: str, **environ: str) -> Any:
    """Run this with an open ``nvml``; what it calls ``out`` comes back."""
    head = "import json\nfrom ai.backend.accelerator.cuda.library import NvmlLibrary\n"
    head += "from ai.backend.accelerator.cuda.nvml import NvmlFailure\nnvml = NvmlLibrary(); nvml.open()\n"
    done = python(stub, "-c", head + textwrap.dedent(body) + "\nprint(json.dumps(out))", **environ)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_code_is_the_bindings() -> None:
    for code in nvml.Code:
        assert getattr(pynvml, f"NVML_ERROR_{code.name}") == code
    assert pynvml.nvmlEventTypeXidCriticalError == nvml.XID_CRITICAL
    assert pynvml.nvmlEventTypeDoubleBitEccError == nvml.DOUBLE_BIT_ECC
    levels = ("INTERNAL", "SINGLE", "MULTIPLE", "HOSTBRIDGE", "NODE", "SYSTEM")
    assert {getattr(pynvml, f"NVML_TOPOLOGY_{level}") for level in levels} == gpus.ANCESTORS.keys()


@pytest.mark.parametrize("fixture", [H100, A100, T4])
async def test_every_question_is_a_function_of_the_binding(fixture: str) -> None:
    machine = Machine(fixture)
    plugin = plugin_on(machine)
    await plugin.init()
    try:
        await plugin.configurable_slots()
        await plugin.gather_node_metrics(StatContext(at=1000.0))
        await plugin.gather_process_metrics(StatContext(at=1000.0), {})
    finally:
        await plugin.cleanup()
    functions = {question.split(" ")[0] for question in machine.asked}
    assert len(functions) > 20
    assert [name for name in functions if not callable(getattr(pynvml, name, None))] == []


def test_structures_become_plain_values() -> None:
    memory = pynvml.c_nvmlMemory_t(total=3, free=2, used=1)
    assert plain(memory) == {"total": 3, "free": 2, "used": 1}
    assert plain((8, 9)) == [8, 9]
    assert plain(b"NVIDIA \xff") == "NVIDIA \ufffd"
    assert plain(pynvml.nvmlFriendlyObject({"pid": 7, "usedGpuMemory": None})) == {"pid": 7, "usedGpuMemory": None}
    assert "device" not in plain(pynvml.c_nvmlEventData_t())


@pytest.mark.needs("gcc")
class TestBinding:
    def test_questions_are_answered(self, stub: Path) -> None:
        assert library(
            stub,
            """
            def missing():
                try:
                    nvml.ask("nvmlDeviceGetTemperature", uuid, 0)
                except NvmlFailure as e:
                    return e.code
            uuid = nvml.ask("nvmlDeviceGetHandleByIndex", 0)
            out = [uuid, nvml.ask("nvmlDeviceGetName", uuid), nvml.ask("nvmlDeviceGetMigMode", uuid), missing(),
                   nvml.ask("nvmlDeviceGetComputeRunningProcesses", uuid),
                   nvml.ask("nvmlDeviceGetProcessUtilization", uuid, 41)]
            """,
        ) == [
            GPU,
            "NVIDIA A100-SXM4-40GB",
            [0, 0],
            nvml.Code.FUNCTION_NOT_FOUND,
            [{"pid": 4242, "usedGpuMemory": 512 * 2**20, "gpuInstanceId": 2**32 - 1, "computeInstanceId": 2**32 - 1}],
            [{"pid": 4242, "timeStamp": 42, "smUtil": 25, "memUtil": 5, "encUtil": 0, "decUtil": 0}],
        ]

    def test_events_come_from_those_that_have_any(self, stub: Path) -> None:
        (stub / "xid").write_text("79")
        assert library(
            stub,
            f"""
            events = nvml.events(["{GPU}", "{CUT}"])
            first = events.wait(10)
            out = [first.uuid, first.kind, first.value, first.gpu_instance, events.wait(10)]
            events.close()
            """,
        ) == [GPU, 8, 79, None, None]

    def test_without_events_it_only_waits(self, stub: Path) -> None:
        (stub / "xid").write_text("79")
        assert library(stub, f'out = nvml.events(["{CUT}"]).wait(10)') is None
        (stub / "xid").unlink()

    def test_instances_are_made_whole_and_undone(self, stub: Path) -> None:
        assert library(
            stub,
            f"""
            def listed():
                found = []
                for place in range(2):
                    try:
                        found.append(nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", "{CUT}", place))
                    except NvmlFailure:
                        pass
                return found
            out = [listed()]
            nvml.create_instance("{CUT}", 9)
            out.append(listed())
            try:
                nvml.create_instance("{CUT}", 9)
            except NvmlFailure as e:
                out.append(e.code)
            nvml.destroy_instance("{CUT}", 0, 0)
            out.append(listed())
            """,
        ) == [[FIRST], [FIRST, SECOND], nvml.Code.INSUFFICIENT_RESOURCES, [SECOND]]

    def test_a_neighbour_in_one_gpu_instance_is_left_alone(self, stub: Path) -> None:
        body = f"""
            nvml.destroy_instance("{CUT}", 0, 0)
            out = [nvml.ask("nvmlDeviceGetGpuInstanceRemainingCapacity", "{CUT}", 9)]
            try:
                nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", "{CUT}", 0)
            except NvmlFailure as e:
                out.append(e.code)
            """
        assert library(stub, body, STUB_NEIGHBOUR="1") == [1, nvml.Code.NOT_FOUND]

    def test_half_an_instance_is_taken_back(self, stub: Path) -> None:
        body = f"""
            out = []
            for _ in range(2):
                try:
                    nvml.create_instance("{CUT}", 9)
                except NvmlFailure as e:
                    out.append([e.function, nvml.ask("nvmlDeviceGetGpuInstanceRemainingCapacity", "{CUT}", 9)])
            """
        assert library(stub, body, STUB_NO_PART="1") == [["nvmlGpuInstanceCreateComputeInstance", 1]] * 2


@pytest.mark.needs("gcc")
class TestRecorded(ComputePluginContract):
    """What ``record`` writes down of the library is played back."""

    has_device_files = False

    @pytest.fixture
    async def plugin(self, recording: Path) -> AbstractComputePlugin:
        self.path = recording
        return self.remake(CudaPlugin())

    def remake(self, plugin: AbstractComputePlugin) -> AbstractComputePlugin:
        recording = Recording.load(self.path)
        return CudaPlugin(plugin.settings, nvml=ReplayNvml(recording), host=ReplayHost(recording))

    async def test_the_recording_says_where_it_is_from(self, ready: AbstractComputePlugin) -> None:
        recording = Recording.load(self.path)
        assert recording.origin["kind"] == "recorded"
        assert recording.origin["hardware"] == "2 x NVIDIA A100-SXM4-40GB"
        assert recording.origin["driver"] == "550.54.15 (CUDA 12.4)"
        assert [d.device_id for d in await ready.list_devices()] == [GPU, CUT, FIRST]


@pytest.mark.needs("gcc")
@pytest.mark.parametrize(
    ("environ", "text"),
    [({"STUB_INIT": "18"}, "different versions"), ({"STUB_INIT": "9"}, "not loaded"), ({"STUB_INIT": "4"}, "refuses")],
)
def test_the_recorder_says_in_a_sentence_why_it_cannot(stub: Path, environ: dict[str, str], text: str) -> None:
    done = python(stub, "-m", "ai.backend.accelerator.cuda.record", **environ)
    assert (done.returncode, done.stdout) == (1, "")
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.needs("gcc")
def test_a_gpu_that_is_lost_from_the_start_does_not_hide_the_others(stub: Path) -> None:
    done = python(stub, "-m", "ai.backend.accelerator.cuda.record", STUB_LOST="1")
    assert json.loads(done.stdout)["origin"]["hardware"] == "1 x NVIDIA A100-SXM4-40GB"


@pytest.mark.needs("gcc")
class TestHosted(HostedContract):
    """As the agent runs it: in a process of its own, which loads the library."""

    reference = "ai.backend.accelerator.cuda"
    has_device_files = False

    @pytest.fixture(autouse=True)
    def _driver(self, stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LD_LIBRARY_PATH", str(stub))

    async def test_an_xid_is_told_through_the_host(self, ready: AbstractComputePlugin, stub: Path) -> None:
        assert isinstance(ready, HealthWatching)
        (stub / "xid").write_text("79")
        change = await asyncio.wait_for(anext(ready.watch_health()), 10)
        assert (change.device_id, change.health) == (GPU, DeviceHealth.UNHEALTHY)
        assert change.reason == "Xid 79: GPU has fallen off the bus"
        assert {d.device_id for d in await ready.list_devices() if d.health is DeviceHealth.UNHEALTHY} == {GPU}
        assert (await ready.available_slots())[SlotName("cuda.device")] == 0

    async def test_cdi_and_profiles_are_told_through_the_host(self, ready: AbstractComputePlugin) -> None:
        assert isinstance(ready, CdiProvider)
        assert isinstance(ready, Partitionable)
        assert [d["name"] for d in (await ready.cdi_spec())["devices"]] == [GPU]
        assert [p.name for p in await ready.partition_profiles(DeviceId(CUT))] == ["3g.20gb"]
        with pytest.raises(Forbidden, match="manage-partitions"):
            await ready.create_partition(DeviceId(CUT), "3g.20gb")


async def test_without_a_driver_the_host_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    plugin = await launch("ai.backend.accelerator.cuda", lambda _: {}, deadline_s=10.0, on_ended=pytest.fail)
    try:
        with pytest.raises(PluginError, match=r"libnvidia-ml\.so\.1 was not found"):
            await plugin.init()
    finally:
        await plugin.close()
