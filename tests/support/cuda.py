"""The cuda plugin over a fixture, with levers for what happens to the GPUs meanwhile."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from ai.backend.accelerator.cuda.nvml import Code, NvmlFailure
from ai.backend.accelerator.cuda.plugin import CudaPlugin
from ai.backend.accelerator.cuda.replay import Recording, ReplayHost, ReplayNvml
from ai.backend.accelerator.cuda.settings import CudaSettings

FIXTURES = Path(__file__).parents[1] / "data" / "nvml"
H100, A100, T4, NO_GPU = "hgx-h100-8.json", "a100-mig-and-whole.json", "t4-pair.json", "no-gpu.json"


def build_stub(folder: Path) -> Path:
    """A stand-in for NVML, to be found by ``LD_LIBRARY_PATH``; it tells the Xid that a test writes to ``xid`` there."""
    target = str(folder / "libnvidia-ml.so.1")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", target, str(FIXTURES / "stub.c")], check=True, timeout=50)
    return folder


class Machine(ReplayNvml):
    """A recorded machine whose answers change, and which can be cut by hand into instances of what it recorded."""

    def __init__(self, fixture: str, **options: Any) -> None:
        super().__init__(Recording.load(FIXTURES / fixture), **options)
        self.asked: list[str] = []
        self.opened = 0
        self.lost: set[str] = set()
        self.running: set[int] = set()
        """UUIDs of GPUs that fell off the bus, and GPU instances in which programs run."""

    def open(self) -> None:
        super().open()
        self.opened += 1

    def ask(self, function: str, *arguments: str | int) -> Any:
        self.asked.append(" ".join([function, *map(str, arguments)]))
        answer = super().ask(function, *arguments)
        if self.lost & {answer if isinstance(answer, str) else "", *map(str, arguments)}:
            raise NvmlFailure(Code.GPU_IS_LOST, function)
        return answer

    def say(self, key: str, answer: Any) -> None:
        self.recording.answers[key] = answer

    def fail(self, key: str, code: int) -> None:
        self.say(key, {"nvml_error": code})

    def create_instance(self, uuid: str, profile: int) -> None:
        """Only the 1g.5gb of the fixture's A100 has room, once."""
        key = f"nvmlDeviceGetGpuInstanceRemainingCapacity {uuid} {profile}"
        if not self.recording.answers.get(key):
            raise NvmlFailure(Code.INSUFFICIENT_RESOURCES, "nvmlDeviceCreateGpuInstance")
        self.say(key, self.recording.answers[key] - 1)
        made = "MIG-a1000000-0000-4000-8000-000000000099"
        like = "MIG-a1000000-0000-4000-8000-000000000012"
        for known, answer in list(self.recording.answers.items()):
            if like in known:
                self.say(known.replace(like, made), answer)
        self.say(f"nvmlDeviceGetGpuInstanceId {made}", 10)
        self.say(f"nvmlDeviceGetMigDeviceHandleByIndex {uuid} 3", made)

    def destroy_instance(self, uuid: str, gpu_instance: int, compute_instance: int) -> None:
        if gpu_instance in self.running:
            raise NvmlFailure(Code.IN_USE, "nvmlGpuInstanceDestroy")
        for key, answer in list(self.recording.answers.items()):
            function, *arguments = key.split(" ")
            if function == "nvmlDeviceGetGpuInstanceId" and answer == gpu_instance:
                places = [k for k, a in self.recording.answers.items() if a == arguments[0]]
                for place in places:
                    self.fail(place, Code.NOT_FOUND)


def plugin_on(machine: Machine, settings: CudaSettings | None = None) -> CudaPlugin:
    return CudaPlugin(settings or CudaSettings(), nvml=machine, host=ReplayHost(machine.recording))
