"""Stores CURVE keys of the link in files that only their owner reads, and binds the keys to agent ids."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import zmq
from zmq.utils import z85

from ai.backend.common.errors import InvalidInput
from ai.backend.common.names import check_slug
from ai.backend.infra.files import write_atomically

KEY_BYTES, KEY_CHARACTERS = 32, 40
_REREAD_S = 1.0
"""A file that is edited in place does not change its directory: it applies after so many seconds."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Holds a CURVE key pair in Z85 text (40 characters for each key)."""

    public: str
    secret: str = field(repr=False)


def covers(bound_id: str, agent_id: str) -> bool:
    """Returns True if a key that is bound to the id or prefix ``bound_id`` may speak for the agent ``agent_id``.

    ``bound_id`` is the id of one agent, or ``PREFIX.*`` for all agents whose ids begin with ``PREFIX.``; keys of
    several processes that share a prefix have a name each, ``PREFIX.*@NAME``.
    """
    prefix, asterisk, _ = bound_id.partition("*")
    return agent_id.startswith(prefix) and len(agent_id) > len(prefix) if asterisk else agent_id == bound_id


def check_bound_id(bound_id: str) -> str:
    """Returns ``bound_id`` if a key can be bound to it, see :func:`covers`. Raises InvalidName."""
    prefix, separator, name = bound_id.partition(".*")
    if separator and name:
        check_slug(name.removeprefix("@") if name.startswith("@") else "", what="agent_id", allow_dots=True)
    check_slug(prefix if separator else bound_id, what="agent_id", allow_dots=True)
    return bound_id


class AgentKeys(Protocol):
    """Maps public keys to agent ids or prefixes of them, see :func:`covers`."""

    def agent_for(self, public_key: str) -> str | None:
        """Returns the agent id or prefix that is bound to this key. Returns None if the key may not connect."""


def generate_keypair(path: Path | None = None) -> KeyPair:
    """Creates a key pair. With a path, writes the secret there (0600) and the public half beside it (``.pub``).

    The public key does not begin with a hyphen, as one of 85 would: people type it after a command.
    """
    public, secret = zmq.curve_keypair()
    while public.startswith(b"-"):
        public, secret = zmq.curve_keypair()
    keypair = KeyPair(public.decode(), secret.decode())
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, f"{keypair.public}\n{keypair.secret}\n".encode())
        write_atomically(path.with_name(path.name + ".pub"), f"{keypair.public}\n".encode(), mode=0o644)
    return keypair


def is_key(text: str) -> bool:
    """Returns True if a text is a CURVE key: 32 bytes in Z85 (ZeroMQ RFC 32)."""
    try:
        return len(text) == KEY_CHARACTERS and len(z85.decode(text)) == KEY_BYTES
    except (ValueError, KeyError, struct.error):
        return False


def load_keypair(path: Path) -> KeyPair:
    """Reads a key file that :func:`generate_keypair` wrote.

    Raises InvalidInput if it is damaged, or others can read it.
    """
    if path.stat().st_mode & 0o077:
        raise InvalidInput(f"{path} can be read by others; make it 0600", data={"path": str(path)})
    lines = path.read_bytes().decode(errors="replace").split()
    if len(lines) != 2 or not all(map(is_key, lines)):
        raise InvalidInput(f"{path} holds no key pair", data={"path": str(path)})
    return KeyPair(*lines)


def load_or_generate_keypair(path: Path) -> KeyPair:
    return load_keypair(path) if path.exists() else generate_keypair(path)


class AgentKeyDirectory:
    """Reads public keys from a directory with one file for each agent, ``<agent id>.pub``, with one key a line.

    A change applies from the next handshake on.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._matches: dict[str, str] = {}
        self._changed_ns = 0
        self._read_at = 0.0

    def allow(self, agent_id: str, public_key: str, *, keeps_earlier: bool = False) -> None:
        """Binds a key to an agent or a prefix of agents. The key replaces earlier keys or joins the newest of them.

        Raises InvalidInput for an invalid key or id.
        """
        check_bound_id(agent_id)
        if len(public_key) != KEY_CHARACTERS:
            raise InvalidInput("not a public key", data={"public_key": "malformed"})
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._directory / f"{agent_id}.pub"
        keys = [public_key]
        if keeps_earlier:
            keys += [key for key in self._read(path) if key != public_key][:1]
        write_atomically(path, "".join(f"{key}\n" for key in keys).encode())

    def revoke(self, agent_id: str) -> None:
        (self._directory / f"{agent_id}.pub").unlink(missing_ok=True)

    def agent_for(self, public_key: str) -> str | None:
        """Returns the agent of a key. The files are all read once, and again for an unknown key if the directory has
        changed or the last reading is a second old: an agent's connection costs one file, and so does a stranger's."""
        agent_id = self._matches.get(public_key)
        if agent_id is not None and public_key in self._read(self._directory / f"{agent_id}.pub"):
            return agent_id
        self._matches.pop(public_key, None)
        self._read_all()
        return self._matches.get(public_key)

    def _read_all(self) -> None:
        try:
            changed_ns = self._directory.stat().st_mtime_ns
        except FileNotFoundError:
            return
        now = time.monotonic()
        if changed_ns == self._changed_ns and now < self._read_at + _REREAD_S:
            return
        self._changed_ns, self._read_at = changed_ns, now
        self._matches = {key: path.stem for path in self._directory.glob("*.pub") for key in self._read(path)}

    @staticmethod
    def _read(path: Path) -> list[str]:
        try:
            return path.read_text().split()
        except FileNotFoundError:
            return []  # revoked meanwhile
