"""Stores the state of a simulated agent in memory that survives the agent. The disk may be full, or kill at a write."""

from __future__ import annotations

import errno
from hashlib import sha256

import msgspec

from ai.backend.agent.channel.model import RunsRecord
from ai.backend.agent.kernels.model import KernelRecord
from ai.backend.common.errors import Conflict
from ai.backend.common.ids import KernelId
from ai.backend.common.wire.reports import KernelObservation
from ai.backend.core.lifecycle.kernel_phase import Phase
from ai.backend.manager.sessions.changes import ObservationAck
from ai.backend.simulator.virtual_time import CURRENT_PROCESS, Process, ProcessDied
from ai.backend.simulator.world import World

_encode = msgspec.msgpack.encode
_decode_record = msgspec.msgpack.Decoder(KernelRecord).decode
_decode_runs = msgspec.msgpack.Decoder(RunsRecord).decode
_decode_observation = msgspec.msgpack.Decoder(KernelObservation).decode


class Disk:
    """Stores the written values of one agent by kind and name. Nothing can be written while the disk is full."""

    def __init__(self, world: World) -> None:
        self.kernels: dict[str, bytes] = {}
        self.runs: dict[str, bytes] = {}
        self.leftovers: dict[str, bytes] = {}
        self.gateway: dict[str, bytes] = {}
        self.cordons: dict[str, bytes] = {}
        self.whole_devices: dict[str, bytes] = {}
        self.outbox: list[bytes] = []
        self.epoch = 0
        self.is_full = False
        self.using_process: Process | None = None
        self._world = world

    def begin_write(self, written_name: str) -> None:
        """Checks that a value can be written now, and may kill the agent's process before the write.

        Raises OSError if the disk is full, ProcessDied if the process is dead from here on.
        """
        process, world = CURRENT_PROCESS.get(), self._world
        if process is None or not process.is_alive or process is not self.using_process:
            raise ProcessDied
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        if world.chance(world.faults.write_fails / 2):
            world.trace("killed before writing", written_name)
            process.kill()
            raise ProcessDied

    def end_write(self, written_name: str) -> None:
        """May kill the agent's process after a write. Raises ProcessDied."""
        process, world = CURRENT_PROCESS.get(), self._world
        if process is not None and world.chance(world.faults.write_fails / 2):
            world.trace("killed after writing", written_name)
            process.kill()
            raise ProcessDied

    def has_news(self, ack: ObservationAck | None) -> bool:
        """Returns True if the disk holds observations of kernels that the manager has not acknowledged."""
        seq = ack.seq if ack is not None and ack.epoch == self.epoch else 0
        return any(_decode_observation(value).seq > seq for value in self.outbox)

    def live_kernels(self) -> list[tuple[KernelId, int]]:
        """Returns the kernel and the attempt of each record that is no tombstone."""
        records = [_decode_record(value) for value in self.kernels.values()]
        return [(record.kernel_id, record.spec.attempt) for record in records if record.phase is not Phase.ENDED]

    def owes_plugin_calls(self) -> bool:
        """Returns True if plugins must still be called for removed workloads."""
        return any(_decode_record(value).owed for value in self.leftovers.values())

    def put(self, values: dict[str, bytes], key: str, value: bytes) -> None:
        if values.get(key) != value:
            self.begin_write(key)
            values[key] = value
            self.end_write(key)

    def forget(self, values: dict[str, bytes], key: str) -> None:
        if key in values:
            self.begin_write(key)
            del values[key]
            self.end_write(key)


class MemoryState:
    """Implements :class:`ai.backend.agent.kernels.store.DurableState` for one life of an agent."""

    def __init__(self, disk: Disk, name: str) -> None:
        self._disk = disk
        self._name = name

    def open(self) -> None:
        using_process = self._disk.using_process
        if using_process is not None and using_process.is_alive:
            raise Conflict("another agent uses this disk")
        self._disk.using_process = CURRENT_PROCESS.get()

    def close(self) -> None:
        self._disk.using_process = None

    def next_epoch(self) -> int:
        self._disk.epoch += 1
        return self._disk.epoch

    def secret(self) -> bytes:
        return sha256(self._name.encode()).digest()

    def kernel_records(self) -> _Records:
        return _Records(self._disk)

    def leftovers(self) -> _Leftovers:
        return _Leftovers(self._disk)

    def outbox(self) -> _Outbox:
        return _Outbox(self._disk)

    def gateway_values(self) -> _NamedValues:
        return _NamedValues(self._disk, self._disk.gateway)

    def cordons(self) -> _NamedValues:
        return _NamedValues(self._disk, self._disk.cordons)

    def whole_devices(self) -> _NamedValues:
        return _NamedValues(self._disk, self._disk.whole_devices)


class _NamedValues:
    def __init__(self, disk: Disk, values: dict[str, bytes]) -> None:
        self._disk = disk
        self._values = values

    def items(self) -> dict[str, bytes]:
        return dict(self._values)

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def put(self, key: str, value: bytes) -> None:
        self._disk.put(self._values, key, value)

    def delete(self, key: str) -> None:
        self._disk.forget(self._values, key)


class _Records:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def load(self) -> list[KernelRecord]:
        return [_decode_record(value) for value in self._disk.kernels.values()]

    def get(self, kernel_id: str) -> KernelRecord | None:
        value = self._disk.kernels.get(kernel_id)
        return _decode_record(value) if value is not None else None

    def put(self, record: KernelRecord) -> None:
        self._disk.put(self._disk.kernels, record.spec.kernel_id, _encode(record))

    def forget(self, kernel_id: str) -> None:
        self.forget_runs(kernel_id)
        self._disk.forget(self._disk.kernels, kernel_id)

    def forget_runs(self, kernel_id: str) -> None:
        self._disk.forget(self._disk.runs, kernel_id)

    def load_runs(self, kernel_id: str) -> RunsRecord | None:
        value = self._disk.runs.get(kernel_id)
        return _decode_runs(value) if value is not None else None

    def put_runs(self, kernel_id: str, runs: RunsRecord) -> None:
        self._disk.put(self._disk.runs, kernel_id, _encode(runs))


class _Leftovers:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def load(self) -> list[KernelRecord]:
        return [_decode_record(value) for value in self._disk.leftovers.values()]

    def put(self, record: KernelRecord) -> None:
        self._disk.put(self._disk.leftovers, self._name(record), _encode(record))

    def forget(self, record: KernelRecord) -> None:
        self._disk.forget(self._disk.leftovers, self._name(record))

    @staticmethod
    def _name(record: KernelRecord) -> str:
        return f"{record.spec.kernel_id}.{record.standing_attempt}"


class _Outbox:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def load(self) -> list[KernelObservation]:
        return [_decode_observation(value) for value in self._disk.outbox]

    def append(self, observation: KernelObservation) -> None:
        self._disk.begin_write("an observation")
        self._disk.outbox.append(_encode(observation))
        self._disk.end_write("an observation")

    def replace(self, observations: list[KernelObservation]) -> None:
        """Clears the outbox if no observations remain to be sent, as the real file does."""
        if not observations:
            self.rewrite(observations)

    def rewrite(self, observations: list[KernelObservation]) -> None:
        self._disk.begin_write("the outbox")
        self._disk.outbox = [_encode(observation) for observation in observations]
        self._disk.end_write("the outbox")

    def close(self) -> None: ...
