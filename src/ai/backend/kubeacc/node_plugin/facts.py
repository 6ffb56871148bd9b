"""Remembers what operations did to devices and no plugin can be asked: their power state and the digest of a program."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from ai.backend.infra.files import write_atomically
from ai.backend.kubeacc.crd.accelerators import Program
from ai.backend.kubeacc.crd.vocabulary import PowerState
from ai.backend.kubeacc.node_plugin.devices import DeviceKey

log = logging.getLogger(__name__)


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    power: PowerState = PowerState.UNKNOWN
    program: Program | None = None


class FactStore:
    """One small file. A file that cannot be read is as none: the facts are unknown then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._facts: dict[str, DeviceFacts] = {}
        try:
            self._facts = msgspec.json.decode(path.read_bytes(), type=dict[str, DeviceFacts])
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as e:
            log.warning("what operations did to devices is not known: %s: %s", path, e)

    def get(self, key: DeviceKey) -> DeviceFacts:
        return self._facts.get("/".join(key), DeviceFacts())

    def put(self, key: DeviceKey, facts: DeviceFacts) -> None:
        """Stores the facts of a device. Raises OSError."""
        self._facts["/".join(key)] = facts
        write_atomically(self._path, msgspec.json.encode(self._facts))
