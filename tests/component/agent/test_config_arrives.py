"""Every field of a WorkloadConfig, from two plugins at once, as a session on the process runtime finds it."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ai.backend.agent.composition import Agent
from ai.backend.agent.config.settings import INTRINSIC_PLUGINS
from ai.backend.agent.runtimes import load_runtime
from ai.backend.common.states import Enforcement, KernelEventReason, KernelStatus
from ai.backend.common.wire.agent import CreateKernels, DestroyKernel, KernelSpec
from ai.backend.plugin.accelerator import DeviceMapping, Mount, WorkloadConfig
from ai.backend.plugin.discovery import PluginSource, find_plugins
from tests.component.agent.test_process_runtime import MIB, RealBench
from tests.support.agent_fakes import FakePlugin, fake_plugin
from tests.support.audit import leftovers

pytestmark = [pytest.mark.needs("isolation", "root")]
S, R = KernelStatus, KernelEventReason
GROUP = 44_444
LOOK = """
import ctypes, errno, os, stat
libc = ctypes.CDLL(None, use_errno=True)
print(os.environ["ALPHA"], os.environ["BETA"])
print(open("/srv/vendor/lib").read(), open("/srv/vendor/inner/only-group").read())
try:
    open("/srv/vendor/lib", "w")
except OSError as e:
    print("written:", e.errno == errno.EROFS)
node = os.stat("/dev/vendor0")
print("device:", stat.S_ISCHR(node.st_mode), os.major(node.st_rdev), os.minor(node.st_rdev))
print([line for line in open("/home/config/resource.txt").read().split("\\n") if line.startswith("VENDOR_")])
libc.syscall(425, 0, 0)
print("io_uring_setup:", ctypes.get_errno() == errno.ENOSYS)
print("cores:", sorted(os.sched_getaffinity(0)))
"""


class ConfigBench(RealBench):
    """The real runtime with the intrinsic plugins, and ``alpha`` and ``beta`` with the configs that a test gives."""

    configs: dict[str, WorkloadConfig]

    def agent(self) -> Agent:
        settings = self.settings()
        sources = find_plugins((), (), INTRINSIC_PLUGINS)
        for key, config in self.configs.items():
            sources.append(PluginSource(key, partial(_itself, fake_plugin(key, config=config))))
        agent = Agent(settings, load_runtime(settings), self.manager, plugins=sources)
        self.agents.append(agent)
        return agent

    async def begin(self, agent: Agent) -> KernelSpec:
        await self.manager.next_heartbeat()
        image = next(i.name for i in self.manager.heartbeats[-1].images if "python" in i.name)
        slots = {"cpu": "1", "mem": str(256 * MIB), **dict.fromkeys(self.configs, "1")}
        spec = self.spec(image=image, slots=slots, environ={"ALPHA": "of the user"})
        await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
        return spec


def _itself(plugin: type[FakePlugin]) -> type[FakePlugin]:
    return plugin


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> Any:
    made = ConfigBench(tmp_path / "agent")
    yield made
    await made.close()


async def test_everything_arrives(node: ConfigBench, tmp_path: Path) -> None:
    vendor = tmp_path / "vendor"
    (vendor / "inner").mkdir(parents=True)
    (vendor / "lib").write_text("library")
    secret = tmp_path / "of-the-group"
    secret.mkdir()
    (secret / "only-group").write_text("for the group")
    os.chown(secret / "only-group", 0, GROUP)
    (secret / "only-group").chmod(0o640)
    node.configs = {
        "alpha": WorkloadConfig(
            mounts=(Mount(source=str(secret), target="/srv/vendor/inner"),),
            env_vars={"ALPHA": "a"},
            resource_data={"VENDOR_A": "1"},
            extra_gids=(GROUP,),
            networks=("rdma0",),
        ),
        "beta": WorkloadConfig(
            mounts=(Mount(source=str(vendor), target="/srv/vendor"),),
            devices=(DeviceMapping(source="/dev/full", target="/dev/vendor0"),),
            env_vars={"BETA": "b"},
            resource_data={"VENDOR_B": "2"},
            extra_syscalls=("io_uring_setup",),
        ),
    }
    node.options["agent"] = {"consented-syscalls": ["io_uring_setup"]}
    agent = await node.start()
    spec = await node.begin(agent)
    running = await node.until(spec, S.RUNNING)
    assert running.message == "the agent's runtime does not apply networks of the plugins"
    result = await node.say(agent, spec, LOOK)
    text = "".join(part for _, part in result.console)
    lines = text.splitlines()
    assert lines[:4] == ["a b", "library for the group", "written: True", "device: True 1 7"], text
    assert lines[4] == "['VENDOR_A=1', 'VENDOR_B=2']"
    assert lines[5] == "io_uring_setup: False"
    assert running.devices is not None
    if node.manager.heartbeats[-1].enforcement["cpuset"] is Enforcement.ENFORCED:
        assert lines[6] == f"cores: [{next(iter(running.devices['cpu']))}]"
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1, forced=True))
    await node.until(spec, S.TERMINATED)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (WorkloadConfig(mounts=(Mount(source="/no/such", target="/srv/x"),)), "a source that does not exist"),
        (WorkloadConfig(devices=(DeviceMapping(source="/dev/no-such"),)), "does not exist on this node"),
        (WorkloadConfig(devices=(DeviceMapping(source="/etc/passwd", target="/dev/x"),)), "is no device"),
        (WorkloadConfig(extra_syscalls=("no_such_call",)), "'no_such_call' cannot be allowed"),
        (WorkloadConfig(extra_syscalls=("mount",)), "'mount' cannot be allowed"),
        (WorkloadConfig(extra_syscalls=("io_uring_setup",)), "the node's operator names it"),
        (WorkloadConfig(extra_gids=(0,)), "extra_gids: 0 is not a group"),
        (WorkloadConfig(mounts=(Mount(source="/etc", target="/proc/1"),)), "nothing can be mounted at '/proc/1'"),
    ],
)
async def test_what_cannot_be_is_denied_with_its_author(
    node: ConfigBench, config: WorkloadConfig, problem: str
) -> None:
    node.configs = {"alpha": WorkloadConfig(env_vars={"GOOD": "1"}), "beta": config}
    agent = await node.start()
    spec = await node.begin(agent)
    ended = await node.until(spec, S.ERROR)
    assert (ended.message or "").startswith("the plugin beta: "), ended.message
    assert problem in (ended.message or "")
    assert list(leftovers(node.data_dir, spec.kernel_id)) == []
