"""Devices by their CDI names in sessions of the process runtime, and what a session without bubblewrap is refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ai.backend.common.errors import CreationDenied
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.plugin.accelerator import DeviceMapping, Mount, WorkloadConfig
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec
from ai.backend.plugin.testing.runtime.suite import Talk
from ai.backend.runtime.process.runtime import ProcessRuntime
from ai.backend.runtime.process.settings import ProcessRuntimeSettings

pytestmark = [pytest.mark.needs("isolation")]
NPU = DeviceMapping(source="", cdi_name="acme.com/npu=n0")
LOOK = (
    "import os, stat; print(os.environ['NPU'], os.environ['NPU_HOME'], open('/opt/npu/name').read(),"
    " os.access('/opt/npu/name', os.W_OK), stat.S_ISCHR(os.stat('/dev/npu0').st_mode), os.path.exists('/dev/npu1'))"
)


@pytest.fixture
async def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ProcessRuntime]:
    settings: dict[str, Any] = dict(getattr(request, "param", {}))
    runtime = ProcessRuntime(ProcessRuntimeSettings(**settings), tmp_path / "state")
    await runtime.setup()
    yield runtime
    for view in await runtime.list_workloads():
        await runtime.remove(view.key)
    await runtime.shutdown()


def describe(runtime: ProcessRuntime, library: Path, **edits: Any) -> None:
    """Writes the specification of two devices where the agent would."""
    folder = Path(runtime.info().cdi_directories[-1])
    folder.mkdir(exist_ok=True)
    devices = [
        {
            "name": f"n{number}",
            "containerEdits": {
                "deviceNodes": [{"path": f"/dev/npu{number}", "hostPath": "/dev/null"}],
                "env": [f"NPU={number}"],
                **edits,
            },
        }
        for number in range(2)
    ]
    mount = {"hostPath": str(library), "containerPath": "/opt/npu", "options": ["ro"]}
    common = {"env": ["NPU_HOME=/opt/npu"], "mounts": [mount]}
    content = {"cdiVersion": "0.5.0", "kind": "acme.com/npu", "devices": devices, "containerEdits": common}
    (folder / "npu.json").write_text(json.dumps(content))


def spec(config: WorkloadConfig) -> WorkloadSpec:
    key = WorkloadKey(kernel_id=KernelId(uuid4()), attempt=1)
    return WorkloadSpec(key=key, session_id=SessionId(uuid4()), image="python", config=config)


async def test_a_session_has_what_the_specification_says(runtime: ProcessRuntime, tmp_path: Path) -> None:
    library = tmp_path / "lib"
    library.mkdir()
    (library / "name").write_text("libnpu")
    describe(runtime, library)
    wanted = spec(WorkloadConfig(devices=(NPU,)))
    await runtime.create(wanted)
    talk = Talk(await runtime.open_channel(wanted.key, epoch=1), 20.0)
    await talk.kind("ready")
    await talk.run(LOOK)
    assert talk.text().split() == ["0", "/opt/npu", "libnpu", "False", "True", "False"]
    await talk.close()


async def test_a_device_with_hooks_is_denied_before_anything_is_made(runtime: ProcessRuntime, tmp_path: Path) -> None:
    describe(runtime, tmp_path, hooks=[{"hookName": "createContainer", "path": "/bin/true"}])
    with pytest.raises(CreationDenied, match=r"the hook createContainer \(/bin/true\)"):
        await runtime.create(spec(WorkloadConfig(devices=(NPU,))))
    assert not await runtime.list_workloads()


@pytest.mark.parametrize("runtime", [{"sandbox": "off"}], indirect=True)
@pytest.mark.parametrize(
    ("config", "data"),
    [
        (WorkloadConfig(mounts=(Mount(source="{}", target="/opt/x"),)), {"field": "mounts", "key": "/opt/x"}),
        (
            WorkloadConfig(devices=(DeviceMapping(source="/dev/null", target="/dev/npu0"),)),
            {"field": "devices", "key": "/dev/npu0"},
        ),
    ],
)
async def test_without_a_sandbox_what_cannot_be_done_is_denied_by_name(
    runtime: ProcessRuntime, config: WorkloadConfig, data: dict[str, str]
) -> None:
    with pytest.raises(CreationDenied, match="without bubblewrap") as denied:
        await runtime.create(spec(config))
    assert denied.value.data == data


@pytest.mark.parametrize("runtime", [{"sandbox": "off"}], indirect=True)
async def test_without_a_sandbox_a_read_only_mount_must_be_so_already(runtime: ProcessRuntime, tmp_path: Path) -> None:
    writable = tmp_path / "writable"
    writable.mkdir()
    writable.chmod(0o777)
    mount = Mount(source=str(writable), target="/home/work/data")
    with pytest.raises(CreationDenied, match="would be writable for the session") as denied:
        await runtime.create(spec(WorkloadConfig(mounts=(mount,))))
    assert denied.value.data == {"field": "mounts", "key": "/home/work/data"}
