"""The plugins for cores and memory, on this machine and on recorded ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from ai.backend.accelerator.intrinsic import CpuHost, CPUPlugin, CPUSettings, MemoryHost, MemoryPlugin, MemorySettings
from ai.backend.plugin.accelerator import AbstractComputePlugin
from ai.backend.plugin.testing.accelerator.contract import ComputePluginContract


class TestCPU(ComputePluginContract):
    @pytest.fixture
    async def plugin(self) -> AbstractComputePlugin:
        return CPUPlugin(CPUSettings())


class TestMemory(ComputePluginContract):
    @pytest.fixture
    async def plugin(self) -> AbstractComputePlugin:
        return MemoryPlugin(MemorySettings())


def two_nodes(root: Path) -> None:
    """Two NUMA nodes with two cores and 4 GiB each, as sysfs and proc of Linux 6 lay them out."""
    for core in range(4):
        (root / f"sys/devices/system/cpu/cpu{core}/node{core // 2}").mkdir(parents=True)
    for node in (0, 1):
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "meminfo").write_text(f"Node {node} MemTotal:        4194304 kB\nNode {node} MemFree: 1 kB\n")
    proc = root / "proc"
    proc.mkdir()
    (proc / "meminfo").write_text("MemTotal:        8388608 kB\nMemFree:  10 kB\nMemAvailable:    4194304 kB\n")
    (proc / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Recorded CPU\n")
    (proc / "stat").write_text("cpu  1 1 1 1 0\ncpu0 100 0 100 800 0 0 0 0 0 0\ncpu1 0 0 0 1000 0 0 0 0 0 0\nintr 5\n")


class TestCPUOfTwoNodes(ComputePluginContract):
    @pytest.fixture
    async def plugin(self, tmp_path: Path) -> AbstractComputePlugin:
        two_nodes(tmp_path)
        return self.make(tmp_path)

    def make(self, root: Path) -> CPUPlugin:
        self.root = root
        return CPUPlugin(host=CpuHost(sys=root / "sys", proc=root / "proc", cores=frozenset(range(4))))

    def remake(self, plugin: AbstractComputePlugin) -> AbstractComputePlugin:
        return self.make(self.root)


class TestMemoryOfTwoNodes(ComputePluginContract):
    @pytest.fixture
    async def plugin(self, tmp_path: Path) -> AbstractComputePlugin:
        two_nodes(tmp_path)
        return self.make(tmp_path)

    def make(self, root: Path) -> MemoryPlugin:
        self.root = root
        return MemoryPlugin(host=MemoryHost(sys=root / "sys", proc=root / "proc"))

    def remake(self, plugin: AbstractComputePlugin) -> AbstractComputePlugin:
        return self.make(self.root)
