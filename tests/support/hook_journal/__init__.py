"""Plugins that write down every call of their hooks, durably and from inside the call, and behave as a script says.

``first`` runs in the agent's process, ``second`` in a host process. Each makes a file for each workload, as a plugin
makes a partition: one however often ``pre_create`` is repeated, gone after ``post_terminate``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, Field

from ai.backend.common.devices import AllocMapSpec, ComputeDevice, DeviceAllocation, DeviceSlot, SlotDisplay
from ai.backend.common.errors import CreationDeferred, CreationDenied
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.common.states import SlotType
from ai.backend.node.linux.proc import stat_fields
from ai.backend.plugin.accelerator import (
    AbstractComputePlugin,
    AbstractLifecycleHook,
    AttachedDevice,
    HookContext,
    TerminationDeferred,
    Workload,
    WorkloadConfig,
)
from ai.backend.plugin.settings import PluginSettings

METHODS = ("pre_create", "post_create", "pre_terminate", "post_terminate")


class JournalSettings(PluginSettings):
    """``script``: method -> what its first, second ... call does over all processes; afterwards it is good."""

    directory: Path = Field(description="Where journal and files are.")
    script: dict[str, list[str]] = Field(default_factory=dict, description="See the class.")


def append(directory: Path, line: Mapping[str, Any]) -> None:
    """One line, on the disk when this returns."""
    fd = os.open(directory / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(fd, json.dumps(line).encode() + b"\n")
        os.fsync(fd)
    finally:
        os.close(fd)


def read(directory: Path) -> list[dict[str, Any]]:
    """Every line so far."""
    try:
        return [json.loads(line) for line in (directory / "journal").read_text().splitlines()]
    except FileNotFoundError:
        return []


class JournalHook(AbstractLifecycleHook):
    def __init__(
        self, workload: Workload, device_alloc: DeviceAllocation, context: HookContext, plugin: JournalingPlugin
    ) -> None:
        super().__init__(workload, device_alloc, context)
        self._plugin = plugin
        self._directory = plugin.config.directory
        self._made = self._directory / f"made.{plugin.key}.{workload.kernel_id}.{context.attempt}"

    def _write(self, method: str, event: str) -> None:
        previous = self.context.previous_allocation
        line = {
            "plugin": self._plugin.key,
            "kernel": str(self.workload.kernel_id),
            "attempt": self.context.attempt,
            "method": method,
            "event": event,
            "cause": self.context.cause.value,
            "agent": self._plugin.agent_pid,
            "workload": self.workload.id,
            "state": self.context.state.data,
            "version": self.context.state.version,
            "held": sorted(self.device_alloc.device_ids()),
            "previous": sorted(previous.device_ids()) if previous is not None else None,
        }
        append(self._directory, line)

    async def _play(self, method: str) -> None:
        state = self.context.state
        mine = (self._plugin.key, method, "begin")
        nth = sum((line["plugin"], line["method"], line["event"]) == mine for line in read(self._directory))
        script = self._plugin.config.script.get(method, [])
        act = script[nth] if nth < len(script) else "good"
        self._write(method, "begin")
        state.data["calls"] = state.data.get("calls", 0) + 1
        self._write(method, "saving")
        await state.save()
        self._write(method, "saved")
        if act == "die":
            os.kill(self._plugin.agent_pid, signal.SIGKILL)
            await asyncio.sleep(60)
        state.data["last"] = method
        state.version += 1
        self._effect(method)
        self._write(method, "end")
        match act:
            case "deny":
                raise CreationDenied("no licence")
            case "defer" if method == "pre_create":
                raise CreationDeferred("busy", retry_after=0.7)
            case "defer":
                raise TerminationDeferred("saving", retry_after=0.1)
            case "fail":
                raise RuntimeError("a bug")
            case "hang":
                await asyncio.Event().wait()

    def _effect(self, method: str) -> None:
        if method == "pre_create":
            self._made.touch()
        elif method == "post_terminate":
            self._made.unlink(missing_ok=True)
        else:
            assert self._made.exists(), f"{method} without what pre_create made"

    async def pre_create(self) -> WorkloadConfig:
        await self._play("pre_create")
        return WorkloadConfig(env_vars={f"{self._plugin.key.upper()}_MADE": self._made.name})

    async def post_create(self) -> None:
        await self._play("post_create")

    async def pre_terminate(self) -> None:
        await self._play("pre_terminate")

    async def post_terminate(self) -> None:
        await self._play("post_terminate")


class JournalingPlugin(AbstractComputePlugin):
    """One device with four units."""

    version = "1"
    settings_model: ClassVar[type[BaseModel] | None] = JournalSettings
    hosted: ClassVar[bool] = False

    def __init__(self, settings: BaseModel | None = None) -> None:
        super().__init__(settings)
        assert isinstance(settings, JournalSettings)
        self.config = settings

    @property
    def agent_pid(self) -> int:
        if not self.hosted:
            return os.getpid()
        zygote = stat_fields(os.getppid())
        assert zygote is not None
        return int(zygote[1])

    async def list_devices(self) -> Sequence[ComputeDevice]:
        slot = DeviceSlot(slot_name=SlotName(self.key), slot_type=SlotType.COUNT, amount=Decimal(4))
        return [
            ComputeDevice(device_name=self.key, device_id=DeviceId(f"{self.key}-0"), hw_location="root", slots=(slot,))
        ]

    async def configurable_slots(self) -> Sequence[SlotDisplay]:
        return [SlotDisplay(slot_name=SlotName(self.key), slot_type=SlotType.COUNT)]

    async def available_slots(self) -> Mapping[SlotName, Any]:
        return {SlotName(self.key): Decimal(4)}

    def alloc_map_spec(self) -> AllocMapSpec | None:
        return AllocMapSpec(kind="discrete")

    async def alloc_to_devices(self, device_alloc: DeviceAllocation) -> Sequence[AttachedDevice]:
        return [AttachedDevice(device_id=d, model_name="Journal") for d in sorted(device_alloc.device_ids())]

    def create_lifecycle_hook(
        self, workload: Workload, device_alloc: DeviceAllocation, context: HookContext
    ) -> AbstractLifecycleHook:
        return JournalHook(workload, device_alloc, context, self)
