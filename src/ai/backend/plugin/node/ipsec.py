"""Encryption of what goes between nodes: IPsec (ESP in transport mode, AES-128-GCM) for one UDP port of each peer.

States and policies are the kernel's, told by its own protocol; ``ip`` may be missing. What is ours carries a mark (the
``reqid``), so that a life of the agent finds what the one before has left.
Source: linux/xfrm.h, RFC 4106 (AES-GCM in ESP), RFC 4304 (extended sequence numbers).
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

from ai.backend.plugin.node.netlink import ROOT, Line, attribute, attributes

_NETLINK_XFRM = 6
_NEWSA, _DELSA, _GETSA, _NEWPOLICY, _DELPOLICY, _GETPOLICY, _UPDPOLICY = 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x19
_CREATE, _EXCLUSIVE = 0x400, 0x200
_TMPL, _ALG_AEAD, _REPLAY_ESN = 5, 18, 23
_ESP, _UDP = 50, 17
_IN, _OUT = 0, 1
_TRANSPORT = 0
_ESN = 0x80
_WINDOW = 128
_INFINITE = (1 << 64) - 1
_CIPHER, _KEY_BYTES, _CHECK_BITS = b"rfc4106(gcm(aes))", 20, 128
_SELECTOR_BYTES, _STATE_BYTES, _POLICY_BYTES = 56, 224, 168


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuredLine:
    """What goes from ``local`` to ``peer`` (IPv4 address, UDP port) and back. Keys have 32 bytes, one for each way."""

    local: tuple[str, int]
    peer: tuple[str, int]
    key_out: bytes
    key_in: bytes

    def __repr__(self) -> str:
        return f"SecuredLine({self.local} {self.peer})"


def why_none(mark: int) -> str:
    """Why this kernel cannot encrypt; empty if it can. Found by doing."""
    if os.geteuid() != 0:
        return "encryption between nodes needs root, and the agent runs as another user"
    probe = _State("127.0.0.1", "127.0.0.1", sha256(f"probe {mark} {os.getpid()}".encode()).digest())
    try:
        with Ipsec(mark) as ipsec:
            try:
                ipsec.add_state(probe)
            finally:
                with suppress(ProcessLookupError):
                    ipsec.remove_state(probe.target, probe.spi)
    except OSError as error:
        return f"the kernel encrypts nothing between nodes (IPsec: ESP with AES-GCM): {error.strerror or error}"
    return ""


def apply(mark: int, lines: Collection[SecuredLine]) -> None:
    """Make these lines, and no other ones of this mark, secured. Idempotent.

    What a line carries is let through encrypted only, from the moment that this returns. Raises OSError.
    """
    with Ipsec(mark) as ipsec:
        states = {(s.target, s.spi): s for line in lines for s in _states(line)}
        known = ipsec.states()
        for state in states.values():
            if (state.target, state.spi) not in known:
                ipsec.add_state(state)
        policies = {policy: None for line in lines for policy in _policies(line)}
        for policy in policies:
            ipsec.set_policy(policy)
        for policy in ipsec.policies():
            if policy not in policies:
                ipsec.remove_policy(policy)
        for target, spi in known:
            if (target, spi) not in states:
                ipsec.remove_state(target, spi)


@dataclass(frozen=True, slots=True)
class _State:
    """One way, by its key."""

    source: str
    target: str
    key: bytes

    @property
    def spi(self) -> int:
        """The number that packets carry; it follows from the key, and says nothing of it. Small ones are reserved."""
        return int.from_bytes(sha256(b"spi" + self.key).digest()[:4]) | 0x100


@dataclass(frozen=True, slots=True)
class _Policy:
    direction: int
    source: str
    target: str
    port: int
    """Of the target, since the sender takes any."""


def _states(line: SecuredLine) -> Iterable[_State]:
    here, there = line.local[0], line.peer[0]
    return _State(here, there, line.key_out), _State(there, here, line.key_in)


def _policies(line: SecuredLine) -> Iterable[_Policy]:
    (here, port), (there, its_port) = line.local, line.peer
    return _Policy(_OUT, here, there, its_port), _Policy(_IN, there, here, port)


def _address(text: str) -> bytes:
    return socket.inet_aton(text) + bytes(12)


def _selector(policy: _Policy) -> bytes:
    ports = struct.pack("!HHHH", policy.port, 0xFFFF, 0, 0)
    kinds = struct.pack("=HBBB3xiI", socket.AF_INET, 32, 32, _UDP, 0, 0)
    return _address(policy.target) + _address(policy.source) + ports + kinds


def _identity(target: str, spi: int) -> bytes:
    return _address(target) + struct.pack("!IB3x", spi, _ESP)


def _lifetime() -> bytes:
    """For ever, and nothing used yet."""
    return struct.pack("=8Q", *[_INFINITE] * 4, 0, 0, 0, 0) + bytes(32)


class Ipsec(Line):
    """About states and policies of one mark. Every method raises OSError with what the kernel said."""

    def __init__(self, mark: int) -> None:
        super().__init__(_NETLINK_XFRM)
        self.mark = mark

    def add_state(self, state: _State) -> None:
        body = bytes(_SELECTOR_BYTES) + _identity(state.target, state.spi) + _address(state.source) + _lifetime()
        body += bytes(12) + struct.pack("=IIHBBB7x", 0, self.mark, socket.AF_INET, _TRANSPORT, 0, _ESN)
        key = state.key[:_KEY_BYTES]
        body += attribute(_ALG_AEAD, struct.pack("=64sII", _CIPHER, 8 * len(key), _CHECK_BITS) + key)
        body += attribute(_REPLAY_ESN, struct.pack("=6I", _WINDOW // 32, 0, 0, 0, 0, _WINDOW))
        self.do(_NEWSA, body, _CREATE | _EXCLUSIVE)

    def remove_state(self, target: str, spi: int) -> None:
        self.do(_DELSA, _address(target) + struct.pack("!I", spi) + struct.pack("=HBx", socket.AF_INET, _ESP))

    def states(self) -> list[tuple[str, int]]:
        """Target and number of each state of this mark."""
        found = []
        for kind, content in self.ask(_GETSA, ROOT, b""):
            if kind == _NEWSA and struct.unpack_from("=I", content, 208)[0] == self.mark:
                target = socket.inet_ntoa(content[56:60])
                found.append((target, int(struct.unpack_from("!I", content, 72)[0])))
        return found

    def set_policy(self, policy: _Policy) -> None:
        body = _selector(policy) + _lifetime() + struct.pack("=IIBBBB4x", 0, 0, policy.direction, 0, 0, 0)
        template = _identity(policy.target, 0) + struct.pack("=H2x", socket.AF_INET) + _address(policy.source)
        template += struct.pack("=IBBBxIII", self.mark, _TRANSPORT, 0, 0, *[0xFFFFFFFF] * 3)
        self.do(_UPDPOLICY, body + attribute(_TMPL, template))

    def remove_policy(self, policy: _Policy) -> None:
        self.do(_DELPOLICY, _selector(policy) + struct.pack("=IB3x", 0, policy.direction))

    def policies(self) -> list[_Policy]:
        """Those whose template has this mark."""
        found = []
        for kind, content in self.ask(_GETPOLICY, ROOT, b""):
            template = dict(attributes(content[_POLICY_BYTES:])).get(_TMPL, b"")
            if kind == _NEWPOLICY and len(template) >= 48 and struct.unpack_from("=I", template, 44)[0] == self.mark:
                target, source = socket.inet_ntoa(content[0:4]), socket.inet_ntoa(content[16:20])
                port = int(struct.unpack_from("!H", content, 32)[0])
                found.append(_Policy(content[160], source, target, port))
        return found
