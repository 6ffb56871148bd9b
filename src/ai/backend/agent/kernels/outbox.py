"""Stores undelivered observations in a file."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from ai.backend.common.wire.reports import KernelObservation
from ai.backend.infra.files import write_atomically

log = logging.getLogger(__name__)


_LARGE_OUTBOX = 1024 * 1024


class FileOutbox:
    """Stores an :class:`~ai.backend.agent.kernels.store.Outbox` as one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._size = 0

    def load(self) -> list[KernelObservation]:
        observations = []
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        for line in lines:
            try:
                observations.append(msgspec.json.decode(line, type=KernelObservation))
            except msgspec.MsgspecError:
                log.warning("an observation in %s was cut short and is dropped; the state is reported anew", self._path)
        return observations

    def append(self, observation: KernelObservation) -> None:
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._size += os.write(self._fd, msgspec.json.encode(observation) + b"\n")

    def replace(self, observations: list[KernelObservation]) -> None:
        """Rewrite the file once it is large or empty. Older observations in it are only sent again after a crash."""
        if observations and self._size < _LARGE_OUTBOX:
            return
        self.rewrite(observations)

    def rewrite(self, observations: list[KernelObservation]) -> None:
        if not observations and self._fd is not None:
            os.ftruncate(self._fd, 0)
            self._size = 0
            return
        self.close()
        content = b"".join(msgspec.json.encode(item) + b"\n" for item in observations)
        write_atomically(self._path, content)
        self._size = len(content)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
