"""Stores a worker's circuits in a file, so that a restarted worker serves before the coordinator answers."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from uuid import UUID

import msgspec

from ai.backend.common.wire import Wire
from ai.backend.common.wire.appproxy import Circuit
from ai.backend.infra.files import write_atomically

log = logging.getLogger(__name__)


class StoredState(Wire, frozen=True, kw_only=True):
    """Holds the circuits of the last state, and the worker's key and certificate for gateways."""

    version: int = -1
    circuits: list[Circuit] = msgspec.field(default_factory=list)
    key: str | None = None
    certificate: str | None = None


class StateFile:
    """Holds the worker's circuits and its key in memory, and writes them to a file when :meth:`save` is called."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._circuits: dict[UUID, Circuit] = {}
        self._version = -1
        self._key: str | None = None
        self._certificate: str | None = None
        self._is_changed = False
        self._saving = threading.Lock()

    def load(self) -> StoredState:
        """Returns the stored state.

        Returns an empty state if there is no file. A file that cannot be read counts as none.
        """
        try:
            state = msgspec.json.decode(self._path.read_bytes(), type=StoredState)
        except FileNotFoundError:
            return StoredState()
        except (OSError, msgspec.MsgspecError) as e:
            log.warning("%s cannot be used, the coordinator will send the circuits again: %s", self._path, e)
            return StoredState()
        self._circuits = {circuit.id: circuit for circuit in state.circuits}
        self._version, self._key, self._certificate = state.version, state.key, state.certificate
        return state

    def replace(self, version: int, circuits: dict[UUID, Circuit]) -> None:
        self._version, self._circuits, self._is_changed = version, circuits, True

    def set_identity(self, key: str, certificate: str) -> None:
        """Stores the key and certificate for gateways."""
        self._key, self._certificate, self._is_changed = key, certificate, True

    @property
    def circuits(self) -> dict[UUID, Circuit]:
        return self._circuits

    def save(self) -> None:
        """Writes the circuits and the key to the file if they have changed since the last write.

        Only the owner of the file may read it, because the file contains the key.
        """
        with self._saving:
            self._write_changes()

    def _write_changes(self) -> None:
        if not self._is_changed:
            return
        self._is_changed = False  # before it is read: it may be changed meanwhile, from another thread
        state = StoredState(
            version=self._version,
            circuits=list(self._circuits.values()),
            key=self._key,
            certificate=self._certificate,
        )
        try:
            write_atomically(self._path, msgspec.json.encode(state))
        except OSError as e:
            self._is_changed = True
            log.warning("%s cannot be written: %s", self._path, e.strerror)
