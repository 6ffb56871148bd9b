"""The guarantees of a session in gVisor, line by line of the reference of the process runtime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tools.kube.families import families

from ai.backend.common.errors import CreationDenied
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.node.workload.runner_files import find_runner
from ai.backend.plugin.accelerator import DeviceMapping, Mount, WorkloadConfig
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec
from ai.backend.runtime.process.runtime import ProcessRuntime
from ai.backend.runtime.process.settings import ProcessRuntimeSettings
from tests.component.runtime import test_tiers
from tests.component.runtime.audit import traces_of
from tests.component.runtime.test_tiers import start

pytestmark = [pytest.mark.slow, pytest.mark.needs("gvisor", "cgroups", "root", "isolation")]
SETTINGS: dict[str, Any] = {"runsc": families()["gvisor"].place() / "runsc", "default_runtime_class": "gvisor"}

test_a_bash_and_a_c_session = test_tiers.test_a_bash_and_a_c_session
test_an_imported_root_runs_its_own_python = test_tiers.test_an_imported_root_runs_its_own_python
test_bad_mounts_are_denied = test_tiers.test_bad_mounts_are_denied
test_control_groups_have_the_limits = test_tiers.test_control_groups_have_the_limits
test_shims_are_small = test_tiers.test_shims_are_small


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[ProcessRuntime]:
    runtime = ProcessRuntime(ProcessRuntimeSettings(**SETTINGS), tmp_path / "state")
    await runtime.setup()
    yield runtime
    for view in await runtime.list_workloads():
        await runtime.remove(view.key)
    await runtime.shutdown()


async def test_it_is_the_default_where_the_settings_say_so(runtime: ProcessRuntime) -> None:
    assert runtime.info().runtime_classes == ("gvisor",)
    _, talk = await start(runtime)
    code = (
        "import os, socket\n"
        "print('gvisor' in open('/proc/version').read(), os.getuid(), [name for _, name in socket.if_nameindex()])\n"
        "print([line for line in open('/proc/self/status') if line.startswith(('CapEff', 'CapBnd', 'NoNewPrivs'))])\n"
        "for path in ('/x', '/usr/x', '/etc/x', '/opt/backend.ai/kernel/x', '/sys/x'):\n"
        "    try: open(path, 'w')\n"
        "    except OSError as e: print(path)\n"
        "print(os.getlogin.__name__, open('/etc/passwd').read().splitlines()[-1])\n"
    )
    await talk.run(code)
    lines = talk.text().splitlines()
    assert lines[0] == "True 59500 ['lo']"
    assert lines[1].count("0000000000000000") == 2
    assert lines[2:7] == ["/x", "/usr/x", "/etc/x", "/opt/backend.ai/kernel/x", "/sys/x"]
    assert lines[7].endswith("work:x:59500:59500:work:/home/work:/bin/bash")
    await talk.close()


async def test_the_share_of_a_core_is_of_the_whole_sandbox(runtime: ProcessRuntime) -> None:
    key, talk = await start(runtime, config=WorkloadConfig(cpu_limit=0.2, memory_limit_bytes=128 << 20))
    await runtime.measure([key])
    await talk.run("import time\nend = time.monotonic() + 2.0\nwhile time.monotonic() < end: pass")
    measured = {m.key: m for m in (await runtime.measure([key]))[key]}
    assert 0 < measured["cpu_util"].value < 60
    assert measured["mem"].capacity == 128 << 20
    await talk.close()


async def test_secrets_are_on_no_disk(runtime: ProcessRuntime) -> None:
    secret = uuid4().hex
    _, talk = await start(runtime, environ={"TOKEN": secret}, secret_names=frozenset({"TOKEN"}))
    await talk.run("import os; print(os.environ['TOKEN'])")
    assert talk.text().strip() == secret
    files = [path for path in runtime.state_dir.rglob("*") if path.is_file() and path.name not in ("log.0", "log.1")]
    assert files
    assert not [path for path in files if secret.encode() in path.read_bytes()]
    await talk.close()


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (WorkloadConfig(devices=(DeviceMapping(source="/dev/zero", target="/dev/accel0"),)), "devices"),
        (WorkloadConfig(ipc="/dev/shm"), "ipc"),
        (WorkloadConfig(mounts=(Mount(source="/usr", target="/usr/share/not-there"),)), "mounts"),
    ],
)
async def test_what_it_cannot_have_is_denied(runtime: ProcessRuntime, config: WorkloadConfig, field: str) -> None:
    key = WorkloadKey(kernel_id=KernelId(uuid4()), attempt=1)
    with pytest.raises(CreationDenied) as denied:
        await runtime.create(WorkloadSpec(key=key, session_id=SessionId(uuid4()), image="python", config=config))
    assert denied.value.data["field"] == field
    assert not traces_of(str(key.kernel_id), runtime.state_dir)
    assert not await asyncio.to_thread(Path("/usr/share/not-there").exists)


async def test_a_folder_is_shared_while_it_changes(runtime: ProcessRuntime, tmp_path: Path) -> None:
    """A write of the host or of another session into a mounted folder is seen at once, in both directions."""
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o777)
    mounts = (
        Mount(source=str(folder), target="/home/work/data", read_only=False),
        Mount(source=str(folder), target="/mnt/data"),
    )
    _, talk = await start(runtime, config=WorkloadConfig(mounts=mounts))
    await talk.run("import os; print(os.listdir('data')); open('data/inner', 'w').write('of the session')")
    assert (folder / "inner").read_text() == "of the session"
    (folder / "outer").write_text("of the host")
    await talk.run(
        "print(open('data/outer').read(), sorted(os.listdir('/mnt/data')))\n"
        "try: open('/mnt/data/no', 'w')\n"
        "except OSError as e: print(e.errno)",
        "r2",
    )
    assert talk.text("r2") == "of the host ['inner', 'outer']\n30\n"
    await talk.close()


async def test_a_runner_without_a_first_process_is_told(tmp_path: Path) -> None:
    """Somebody's own directory of the runner's files lacks the relay."""
    settings = ProcessRuntimeSettings(**{**SETTINGS, "default_runtime_class": "", "runner_directory": find_runner()})
    runtime = ProcessRuntime(settings, tmp_path / "other")
    await runtime.setup()
    try:
        assert runtime.info().runtime_classes == ()
        assert "relay/main.py" in runtime.probe_result.no_gvisor
    finally:
        await runtime.shutdown()
