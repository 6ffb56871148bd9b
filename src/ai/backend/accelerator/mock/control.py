"""Applies failed devices and faults from the declaration and a control file while the plugin runs."""

from __future__ import annotations

import logging
from pathlib import Path

from ai.backend.accelerator.mock.declaration import Control, Declaration, read_table
from ai.backend.accelerator.mock.faults import FaultSchedule
from ai.backend.common.errors import BackendError, InvalidInput

log = logging.getLogger(__name__)
ALL = "*"


class ControlPanel:
    """Combines the declaration's failures and faults with those of the control file.

    The file is read again when it changes; it need not exist. One that cannot be used while the plugin runs changes
    nothing and is told in the log and in ``problem``.
    """

    def __init__(
        self, declaration: Declaration, path: Path | None, faults: FaultSchedule, *, source: Path | None = None
    ) -> None:
        self._declaration = declaration
        self._source = source
        self._path = path
        self._known = frozenset(device.mother_uuid for device in declaration.expanded())
        self._stamp: tuple[int, ...] | None = ()
        self._unhealthy: dict[str, str] = {}
        self.faults = faults
        self.problem = ""

    def load(self) -> None:
        """Raises InvalidInput or PluginError: the declaration or the file has something wrong; nothing is changed."""
        self._stamp = self._read_stamp()
        control = read_table(self._path, Control) if self._path is not None and self._stamp is not None else Control()
        for where, table in ((self._source, self._declaration), (self._path, control)):
            strangers = [name for name in table.unhealthy if name != ALL and name.partition("/")[0] not in self._known]
            problem = (
                f"unhealthy: there is no device {strangers[0]!r}" if strangers else self.faults.objection(table.faults)
            )
            if problem:
                raise InvalidInput(f"{where or 'the declaration'}: {problem}")
        self.faults.set((*control.faults, *self._declaration.faults))
        unhealthy = {**self._declaration.unhealthy, **control.unhealthy}
        self._unhealthy = unhealthy
        self.problem = ""

    def refresh(self) -> None:
        """Read the file if it has changed."""
        if self._read_stamp() == self._stamp:
            return
        try:
            self.load()
        except BackendError as e:
            self.problem = e.message
            log.error("the control file of the mock accelerator is not used: %s", e.message)

    def failure(self, *device_ids: str) -> str | None:
        """Returns why one of these counts as failed; None if none does."""
        for name in (*device_ids, ALL):
            if name in self._unhealthy:
                return self._unhealthy[name] or "switched to unhealthy"
        return None

    def _read_stamp(self) -> tuple[int, ...] | None:
        try:
            version = self._path.stat() if self._path is not None else None
        except OSError:
            version = None
        return (version.st_mtime_ns, version.st_size, version.st_ino) if version is not None else None
