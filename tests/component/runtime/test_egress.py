"""Networks of sessions with a way out: what is reached, what is not, and that no helper outlives its workload."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from uuid import uuid4

import pytest

from ai.backend.common.ids import KernelId, SessionId
from ai.backend.node.linux import proc
from ai.backend.plugin.runtime import PortExposure, WorkloadKey, WorkloadSpec
from ai.backend.plugin.testing.runtime.suite import Talk
from ai.backend.runtime.process.egress import find_helpers
from ai.backend.runtime.process.records import StateDirectory
from ai.backend.runtime.process.runtime import ProcessRuntime
from ai.backend.runtime.process.settings import ProcessRuntimeSettings
from tests.component.runtime.network_driver import HOSTS
from tests.component.runtime.test_networks import running, start
from tests.support.cluster import wait_until

pytestmark = pytest.mark.needs("isolation", "egress")
LOOK = (
    "import socket\n"
    "def reach(host, port):\n"
    "    with socket.socket() as s:\n"
    "        s.settimeout(1)\n"
    "        return s.connect_ex((host, port)) == 0\n"
    "print(*(reach(host, {port}) for host in ('127.0.0.1', '10.0.2.2')))\n"
    "print([line.split()[0] for line in open('/proc/net/route') if line.split()[1] == '00000000'])\n"
    "print(open('/etc/resolv.conf').readline().strip())\n"
)
SEEN = "False False\n['tap0']\nnameserver 10.0.2.3\n"


async def started(runtime: ProcessRuntime) -> Talk:
    key = WorkloadKey(kernel_id=KernelId(uuid4()), attempt=1)
    await runtime.create(WorkloadSpec(key=key, session_id=SessionId(uuid4()), image="python"))
    talk = Talk(await runtime.open_channel(key, epoch=1), 20.0)
    await talk.kind("ready")
    talk.key = key
    return talk


def helper_of(state: Path, key: WorkloadKey) -> tuple[int, int]:
    pid, began = (StateDirectory(state).workload(key).identity() or {})["helper"]
    return pid, began


async def test_a_network_of_its_own_with_a_way_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        async with running("process", tmp_path / "state") as runtime:
            assert isinstance(runtime, ProcessRuntime)
            assert runtime.info().enforcement["network"] == "enforced"
            talk = await started(runtime)
            await talk.run(LOOK.format(port=server.getsockname()[1]))
            assert talk.text() == SEEN
            assert await runtime.port_exposure(talk.key) is PortExposure.PRIVATE
            helper = helper_of(tmp_path / "state", talk.key)
            assert proc.is_same(*helper)
            assert helper[0] not in await runtime.pids(talk.key)
            await talk.close()
            await runtime.stop(talk.key, grace_s=1.0)
            wait_until(lambda: not proc.is_same(*helper), what="the helper's end")


async def test_a_helper_does_not_outlive_a_killed_shim(tmp_path: Path) -> None:
    async with running("process", tmp_path / "state") as runtime:
        assert isinstance(runtime, ProcessRuntime)
        talk = await started(runtime)
        helper = helper_of(tmp_path / "state", talk.key)
        identity = StateDirectory(tmp_path / "state").workload(talk.key).identity() or {}
        os.kill(identity["shim"][0], signal.SIGKILL)
        async with asyncio.timeout(30):
            await anext(runtime.events())
        wait_until(lambda: not proc.is_same(*helper), what="the helper's end")
        await talk.close()


@pytest.mark.needs("root")
async def test_kernels_of_a_cluster_have_both(tmp_path: Path) -> None:
    """Spec 03-01, "Single-node cluster session": the private network comes in addition to the default one, where
    slirp4netns works: pasta cannot enter a network of root's (docs/decisions/0210)."""
    helpers, _ = await asyncio.to_thread(find_helpers, ProcessRuntimeSettings())
    if "as-root" not in helpers:
        assert helpers["as-user"][0].endswith("pasta")
        return
    with socket.create_server(("127.0.0.1", 0)) as server:
        async with running("process", tmp_path / "state") as runtime:
            network = await runtime.create_network(SessionId(uuid4()), HOSTS)
            talk = await start(runtime, network, HOSTS[0])
            await talk.run(LOOK.format(port=server.getsockname()[1]))
            assert talk.text() == SEEN
            await talk.run("print(open('/proc/net/dev').read().count('eth0:'))", "r2")
            assert talk.text("r2") == "1\n"
            await talk.close()


async def test_without_a_helper_it_is_the_hosts_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ai.backend.runtime.process.egress.HELPERS", ("no-such-helper",))
    async with running("process", tmp_path / "state") as runtime:
        assert isinstance(runtime, ProcessRuntime)
        assert runtime.info().enforcement["network"] == "none"
        assert any("share the host's network" in note for note in runtime.probe_result.notes)
        talk = await started(runtime)
        assert await runtime.port_exposure(talk.key) is PortExposure.HOST
        await talk.close()
