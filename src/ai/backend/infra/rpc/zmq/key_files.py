"""Reads keys of the link again when their files are replaced."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.rpc.zmq.keys import KEY_CHARACTERS, KeyPair, is_key, load_keypair, load_or_generate_keypair

log = logging.getLogger(__name__)
T = TypeVar("T")


class ReplacedFile(Generic[T]):
    """Reads a file again after the file was replaced or written.

    ``load`` raises InvalidInput or OSError for a file that cannot be used: that is logged once, and what the file held
    before goes on being used. Raises as ``load`` for the first reading.
    """

    def __init__(self, path: Path, load: Callable[[Path], T]) -> None:
        self._path = path
        self._load = load
        self._stamp = self._read_stamp()
        self._value = load(path)

    def newest(self) -> T:
        """Returns the content of the file. The file is read again if it was replaced or written since the last read."""
        file_stamp = self._read_stamp()
        if file_stamp != self._stamp:
            self._stamp = file_stamp
            try:
                self._value = self._load(self._path)
            except (OSError, InvalidInput) as e:
                log.warning("%s cannot be used, what it held before is: %s", self._path, e)
        return self._value

    def _read_stamp(self) -> tuple[int, int, int, int] | None:
        try:
            file_status = self._path.stat()
        except OSError:
            return None
        return file_status.st_mtime_ns, file_status.st_ino, file_status.st_size, file_status.st_mode


def load_public_keys(path: Path) -> tuple[str, ...]:
    """Reads the public keys in a file. White space separates the keys.

    Raises InvalidInput if it holds none, or something else.
    """
    try:
        keys = tuple(path.expanduser().read_text().split())
    except (OSError, UnicodeDecodeError) as e:
        raise InvalidInput(f"{path} holds no key: {e}", data={"path": str(path)}) from None
    if not keys or not all(map(is_key, keys)):
        raise InvalidInput(f"{path} holds no key of {KEY_CHARACTERS} characters", data={"path": str(path)})
    return keys


class AgentKeyFiles:
    """Reads the keys of an agent's end: a key pair, which is created if its file is missing, and the manager's public
    keys.

    Raises InvalidInput if a file cannot be used.
    """

    def __init__(self, keypair_file: Path, manager_key_file: Path | None) -> None:
        load_or_generate_keypair(keypair_file)
        self._keypair = ReplacedFile(keypair_file, load_keypair)
        self._manager_keys = ReplacedFile(manager_key_file, load_public_keys) if manager_key_file is not None else None

    @property
    def keypair(self) -> KeyPair:
        return self._keypair.newest()

    def newest(self, manager_key: str) -> tuple[KeyPair, tuple[str, ...]]:
        """Returns the valid keys. Without a file of the manager's keys, ``manager_key`` is the manager's only key."""
        return self.keypair, (manager_key,) if self._manager_keys is None else self._manager_keys.newest()
