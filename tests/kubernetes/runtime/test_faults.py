"""What the cluster, its daemons and other people do to pods: sessions go on, or end with the reason."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tools.kube.cluster import Cluster
from tools.kube.daemon import SLOWNESS

from ai.backend.common.errors import CreationDeferred, CreationDenied, Unavailable
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.plugin.accelerator import DeviceMapping, Mount, WorkloadConfig
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec, WorkloadState
from ai.backend.plugin.testing.runtime.suite import Talk
from ai.backend.runtime.kubernetes.records import pod_name
from tests.kubernetes.runtime import crash_agent
from tests.kubernetes.runtime.sites import NAMESPACE, PYTHON_IMAGE, OpenRuntime, Site, open_runtime

pytestmark = pytest.mark.needs("kubernetes")
PATIENCE_S = 60.0 * SLOWNESS
IS_UNIFIED = Path("/sys/fs/cgroup/cgroup.controllers").exists()
CRASH_POINTS = ("create.posted", "create.linked", "create.placed", "create.begun")


@pytest.fixture
async def opened(tmp_path: Path, session_site: Site) -> AsyncIterator[OpenRuntime]:
    async with _opened(session_site, tmp_path) as opened:
        yield opened


@asynccontextmanager
async def _opened(site: Site, directory: Path) -> AsyncIterator[OpenRuntime]:
    """Runs a runtime until the end of the block, which leaves no workload."""
    opened = site.open(directory)
    await opened.runtime.setup()
    yield opened
    for view in await opened.runtime.list_workloads():
        await opened.runtime.remove(view.key)
    await opened.runtime.shutdown()
    await opened.api.close()
    site.require_nothing_left()


def spec_of(**changes: Any) -> WorkloadSpec:
    key = WorkloadKey(kernel_id=KernelId(uuid.uuid4()), attempt=1)
    return WorkloadSpec(key=key, session_id=SessionId(uuid.uuid4()), image=PYTHON_IMAGE, **changes)


async def start(opened: OpenRuntime, spec: WorkloadSpec | None = None, epoch: int = 1) -> Talk:
    view = await opened.runtime.create(spec or spec_of())
    talk = Talk(await opened.runtime.open_channel(view.key, epoch=epoch), PATIENCE_S)
    talk.key = view.key
    await talk.kind("ready")
    return talk


async def test_a_pod_that_somebody_deletes_is_seen_to_its_end(opened: OpenRuntime, session_site: Site) -> None:
    talk = await start(opened)
    name = pod_name(talk.key)
    await asyncio.to_thread(session_site.cluster.kubectl, "delete", "pod", "-n", NAMESPACE, name, "--wait=false")
    exited = await talk.kind("exited")
    assert exited["reason"] == "container-removed"
    view = await opened.runtime.inspect(talk.key)
    assert view is not None
    assert view.state is WorkloadState.EXITED
    assert [pod["metadata"]["name"] for pod in session_site.pods()] == [name], "the finalizer keeps it"
    await opened.runtime.remove(talk.key)
    await talk.close()


@pytest.mark.parametrize("daemon", ["kubelet", "containerd"])
async def test_a_session_goes_on_while_the_daemons_of_its_node_are_away(
    opened: OpenRuntime, session_site: Site, daemon: str
) -> None:
    talk = await start(opened)
    process = session_site.cluster.daemons[daemon]
    await asyncio.to_thread(process.kill)
    try:
        await talk.run("x = 41")
    finally:
        await asyncio.to_thread(process.start)
    await talk.run("print(x + 1)", "r2")
    assert talk.text("r2") == "42\n"
    stopped = await opened.runtime.stop(talk.key, grace_s=2.0)
    assert stopped is not None
    assert stopped.reason == "stopped"
    await talk.close()


async def test_nothing_ends_while_the_api_server_is_away(cluster_to_break: Cluster, tmp_path: Path) -> None:
    site = Site(cluster_to_break)
    await asyncio.to_thread(site.prepare, tmp_path)
    async with _opened(site, tmp_path) as opened:
        talk = await start(opened)
        server = cluster_to_break.daemons["kube-apiserver"]
        await asyncio.to_thread(server.kill)
        try:
            await talk.run("print('still here')")
            assert talk.text() == "still here\n"
            with pytest.raises((CreationDeferred, Unavailable)):
                await opened.runtime.create(spec_of())
            again = Talk(await opened.runtime.open_channel(talk.key, epoch=2), PATIENCE_S)
            await again.run("print('a new channel too')", "r2")
            assert [view.state for view in await opened.runtime.list_workloads()] == [WorkloadState.RUNNING]
            stopped = await opened.runtime.stop(talk.key, grace_s=2.0)
            assert stopped is not None
            assert stopped.reason == "stopped", "its relay ends it, without the API server"
            await again.close()
        finally:
            await asyncio.to_thread(server.start)
            await asyncio.to_thread(cluster_to_break.reconnect)
        await talk.close()


async def test_what_a_session_said_at_its_end_is_read_by_the_next_agent(tmp_path: Path, session_site: Site) -> None:
    first = session_site.open(tmp_path)
    await first.runtime.setup()
    talk = await start(first)
    await talk.channel.send(
        {"t": "run", "id": "r1", "mode": "query", "code": "import time; time.sleep(1); print('end')"}
    )
    await talk.channel.send({"t": "shutdown"})
    await talk.close()
    await first.runtime.shutdown()
    await first.api.close()
    await asyncio.sleep(3)  # it ends meanwhile
    again = first.again()
    await again.runtime.setup()
    try:
        late = Talk(await again.runtime.open_channel(talk.key, epoch=2), PATIENCE_S)
        assert (await late.kind("exited"))["code"] == 0
        assert [frame["t"] for frame in late.frames][:2] == ["ready", "started"]
        await late.close()
        await again.runtime.remove(talk.key)
    finally:
        await again.runtime.shutdown()
        await again.api.close()
    session_site.require_nothing_left()


@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_an_agent_that_is_killed_within_a_creation_leaves_what_the_next_one_finishes(
    tmp_path: Path, session_site: Site, point: str
) -> None:
    spec, settings = spec_of(environ={"WHO": "me"}), session_site.settings()
    arguments = [str(session_site.cluster.kubeconfig), settings.model_dump_json(), str(tmp_path)]
    arguments += [str(spec.key.kernel_id), str(spec.session_id)]
    environ = {**os.environ, "BACKENDAI_CRASH_POINT": point}
    command = [sys.executable, crash_agent.__file__, *arguments]
    done = await asyncio.to_thread(subprocess.run, command, env=environ, capture_output=True, timeout=90, check=False)
    assert done.returncode == -9, done.stderr.decode()[-2000:]
    assert [pod["metadata"]["name"] for pod in session_site.pods()] == [pod_name(spec.key)]
    opened = open_runtime(settings, session_site.cluster, tmp_path)
    await opened.runtime.setup()
    try:
        talk = await start(opened, spec, epoch=2)
        await talk.run("import os; print(os.environ['WHO'])")
        assert talk.text() == "me\n"
        await talk.close()
        assert len(session_site.pods()) == 1
        await opened.runtime.remove(spec.key)
    finally:
        await opened.runtime.shutdown()
        await opened.api.close()
    session_site.require_nothing_left()


@pytest.mark.parametrize(
    ("config", "error", "text"),
    [
        (WorkloadConfig(cpu_limit=4000.0), CreationDeferred, "bind"),
        (WorkloadConfig(devices=(DeviceMapping(source="", cdi_name="gpu.test/uuid=G1"),)), CreationDeferred, "bind"),
        (WorkloadConfig(devices=(DeviceMapping(source="/dev/null"),)), CreationDenied, "publishes"),
        (WorkloadConfig(mounts=(Mount(source="/vfroot/a", target="/home/work/a"),)), CreationDenied, "Claim"),
        (WorkloadConfig(extra_syscalls=("bpf",)), CreationDenied, "RuntimeDefault"),
    ],
)
async def test_what_a_pod_cannot_have_is_refused_with_the_reason(
    tmp_path: Path, session_site: Site, config: WorkloadConfig, error: type[Exception], text: str
) -> None:
    opened = session_site.open(tmp_path, schedule_timeout_s=2.0)
    await opened.runtime.setup()
    try:
        with pytest.raises(error, match=text):
            await opened.runtime.create(spec_of(config=config))
        assert not await opened.runtime.list_workloads()
    finally:
        await opened.runtime.shutdown()
        await opened.api.close()
    session_site.require_nothing_left()


async def test_a_program_that_takes_all_memory_ends_as_out_of_memory(opened: OpenRuntime) -> None:
    """On version 2 of control groups the kubelet has all processes of the container ended (`memory.oom.group`)."""
    config = WorkloadConfig(memory_limit_bytes=64 << 20, cpu_limit=1.0)
    talk = await start(opened, spec_of(config=config, shmem_bytes=1 << 20))
    code = "import ctypes, os, signal\nx = bytearray(1 << 30)\nfor i in range(0, len(x), 4096): x[i] = 1\n"
    if IS_UNIFIED:
        await talk.channel.send({"t": "run", "id": "r1", "mode": "query", "code": code})
        exited = await talk.kind("exited")
        assert (exited["oom"], exited["reason"]) == (True, "out-of-memory")
    else:
        finished = await talk.run(code)
        assert finished["reason"] == "interpreter-died"
    await talk.close()


async def test_a_quota_of_the_namespace_defers(opened: OpenRuntime, session_site: Site) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none", "namespace": NAMESPACE}}
    await asyncio.to_thread(session_site.cluster.apply, {**quota, "spec": {"hard": {"pods": "0"}}})
    try:
        with pytest.raises(CreationDeferred, match="exceeded quota"):
            await opened.runtime.create(spec_of())
    finally:
        path = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas/none"
        await asyncio.to_thread(session_site.cluster.request, "DELETE", path)
