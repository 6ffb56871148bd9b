"""Stores results of operations that no plugin can report, such as the power state and the digest of a program.

What was true before the machine was started anew is not known: devices come back with power, and FPGAs without image.
"""

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


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    boot_id: str
    facts: dict[str, DeviceFacts] = {}


def boot_id() -> str:
    """Returns the id of the machine's present boot. Returns an empty text if the operating system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


class FactStore:
    """Stores the facts of all devices in one file.

    The facts are unknown if the file cannot be read, or is of an earlier start of the machine.
    """

    def __init__(self, path: Path, *, current_boot_id: str | None = None) -> None:
        self._path = path
        self._boot_id = boot_id() if current_boot_id is None else current_boot_id
        self._facts: dict[str, DeviceFacts] = {}
        try:
            stored_facts = msgspec.json.decode(path.read_bytes(), type=_Stored)
            if stored_facts.boot_id == self._boot_id:
                self._facts = stored_facts.facts
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as e:
            log.warning("what operations did to devices is not known: %s: %s", path, e)

    def get(self, key: DeviceKey) -> DeviceFacts:
        return self._facts.get("/".join(key), DeviceFacts())

    def images(self) -> list[str]:
        """Returns the paths of the images that devices have loaded."""
        return [device_facts.program.image for device_facts in self._facts.values() if device_facts.program is not None]

    def put(self, key: DeviceKey, device_facts: DeviceFacts) -> None:
        """Stores the facts of a device. Raises OSError."""
        self._facts["/".join(key)] = device_facts
        write_atomically(self._path, msgspec.json.encode(_Stored(boot_id=self._boot_id, facts=self._facts)))
