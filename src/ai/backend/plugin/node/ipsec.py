"""Guarding what goes between nodes by IPsec: who may send to a UDP port at all, and encryption (ESP in transport mode,
AES-128-GCM) where there are keys.

States and policies are the kernel's, told by its own protocol; ``ip`` may be missing. What is ours carries a mark (the
``reqid``), so that a life of the agent finds what the one before has left.

A port that has a line is closed to all but its peers, at every address of this node; to a peer's port nothing is passed
on that others send (a session's container would have this node's address there), but for what peers send to each other.
What does not leave this node (by its loopback) the kernel does not ask policies about.
Source: linux/xfrm.h, RFC 4106 (AES-GCM in ESP), RFC 4304 (extended sequence numbers).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256

from ai.backend.plugin.node.netlink import ROOT, Line, attribute, attributes

_NETLINK_XFRM = 6
_NEWSA, _DELSA, _GETSA, _NEWPOLICY, _DELPOLICY, _GETPOLICY, _UPDPOLICY = 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x19
_CREATE, _EXCLUSIVE = 0x400, 0x200
_TMPL, _ALG_AEAD, _REPLAY_ESN = 5, 18, 23
_ESP, _UDP = 50, 17
_IN, _OUT, _FORWARD = 0, 1, 2
_ALLOW, _REFUSE = 0, 1
_TRANSPORT = 0
_ESN = 0x80
_WINDOW = 128
_INFINITE = (1 << 64) - 1
_CIPHER, _KEY_BYTES, _CHECK_BITS = b"rfc4106(gcm(aes))", 20, 128
_SELECTOR_BYTES, _STATE_BYTES, _POLICY_BYTES = 56, 224, 168


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuredLine:
    """What goes from ``local`` to ``peer`` (IPv4 address, UDP port) and back. Keys have 32 bytes, one for each way;
    without them it goes in plain, and is believed by its address."""

    local: tuple[str, int]
    peer: tuple[str, int]
    key_out: bytes = b""
    key_in: bytes = b""

    @property
    def is_encrypted(self) -> bool:
        return bool(self.key_out and self.key_in)

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

    From the moment that this returns what a line with keys carries is let through encrypted only, and nobody but peers
    reaches the ports. Raises OSError; FileExistsError if somebody else encrypts what goes to a peer's port.
    """
    with Ipsec(mark) as ipsec:
        states = {(s.target, s.spi): s for line in lines for s in _states(line)}
        known = ipsec.states()
        for state in states.values():
            if (state.target, state.spi) not in known:
                ipsec.add_state(state)
        policies = {policy for line in lines for policy in _policies(line)}
        held = ipsec.policies()
        for policy in sorted(policies.difference(held), key=lambda policy: policy.rule):
            ipsec.set_policy(policy, is_ours=any(policy.place == other.place for other in held))
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


class _Rule(IntEnum):
    """What happens to packets. Those let in go first, so that a port is never closed to its peers."""

    ENCRYPT, ADMIT, BLOCK = range(3)


_PRIORITY = {_Rule.ENCRYPT: 0, _Rule.ADMIT: 0x7FFFFFFE, _Rule.BLOCK: 0x7FFFFFFF}
"""The smallest goes first. What an operator encrypts by rules of his own goes before what is let in as it is."""
_ANYBODY, _NOWHERE = "", "0.0.0.0"


@dataclass(frozen=True, slots=True)
class _Policy:
    direction: int
    source: str
    target: str
    port: int
    """Of the target, since the sender takes any."""
    rule: _Rule = _Rule.ENCRYPT

    @property
    def place(self) -> tuple[object, ...]:
        """The kernel has one policy at each."""
        return self.direction, self.source, self.target, self.port


def _states(line: SecuredLine) -> Iterable[_State]:
    here, there = line.local[0], line.peer[0]
    if not line.is_encrypted:
        return ()
    return _State(here, there, line.key_out), _State(there, here, line.key_in)


def _policies(line: SecuredLine) -> Iterable[_Policy]:
    (here, port), (there, its_port) = line.local, line.peer
    if line.is_encrypted:
        yield _Policy(_OUT, here, there, its_port)
        yield _Policy(_IN, there, here, port)
    else:
        yield _Policy(_IN, there, here, port, _Rule.ADMIT)
        yield _Policy(_FORWARD, there, _ANYBODY, its_port, _Rule.ADMIT)
    yield _Policy(_IN, _ANYBODY, _ANYBODY, port, _Rule.BLOCK)
    yield _Policy(_FORWARD, _ANYBODY, there, its_port, _Rule.BLOCK)


def _address(text: str) -> bytes:
    return socket.inet_aton(text) + bytes(12)


def _end(address: str, mark: int) -> tuple[bytes, int]:
    """As an address and how many bits of it count. Of anybody none does: they hold the mark, as the kernel has but one
    policy for a selector, and each agent of a node needs its own."""
    return (_address(address), 32) if address else (struct.pack("!I", mark) + bytes(12), 0)


def _selector(policy: _Policy, mark: int) -> bytes:
    (target, bits), (source, source_bits) = _end(policy.target, mark), _end(policy.source, mark)
    ports = struct.pack("!HHHH", policy.port, 0xFFFF, 0, 0)
    return target + source + ports + struct.pack("=HBBB3xiI", socket.AF_INET, bits, source_bits, _UDP, 0, 0)


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

    def set_policy(self, policy: _Policy, *, is_ours: bool = False) -> None:
        """``is_ours``: in place of one that we have. Raises FileExistsError if it is somebody else's."""
        action = _REFUSE if policy.rule is _Rule.BLOCK else _ALLOW
        body = _selector(policy, self.mark) + _lifetime()
        body += struct.pack("=IIBBBB4x", _PRIORITY[policy.rule], 0, policy.direction, action, 0, 0)
        target, source = policy.target or _NOWHERE, policy.source or _NOWHERE
        template = _identity(target, 0) + struct.pack("=H2x", socket.AF_INET) + _address(source)
        is_optional = policy.rule is not _Rule.ENCRYPT  # it carries our mark, and asks for nothing
        template += struct.pack("=IBBBxIII", self.mark, _TRANSPORT, 0, is_optional, *[0xFFFFFFFF] * 3)
        try:
            self.do(_UPDPOLICY if is_ours else _NEWPOLICY, body + attribute(_TMPL, template))
        except FileExistsError:
            what = f"goes from {policy.source or 'here'} to {policy.target or 'here'}, port {policy.port}"
            raise FileExistsError(errno.EEXIST, f"another agent of this node secures what {what}") from None

    def remove_policy(self, policy: _Policy) -> None:
        self.do(_DELPOLICY, _selector(policy, self.mark) + struct.pack("=IB3x", 0, policy.direction))

    def policies(self) -> list[_Policy]:
        """Those whose template has this mark."""
        found = []
        for kind, content in self.ask(_GETPOLICY, ROOT, b""):
            template = dict(attributes(content[_POLICY_BYTES:])).get(_TMPL, b"")
            if kind == _NEWPOLICY and len(template) >= 48 and struct.unpack_from("=I", template, 44)[0] == self.mark:
                target = socket.inet_ntoa(content[0:4]) if content[42] else _ANYBODY
                source = socket.inet_ntoa(content[16:20]) if content[43] else _ANYBODY
                port = int(struct.unpack_from("!H", content, 32)[0])
                admits = _Rule.ADMIT if template[50] else _Rule.ENCRYPT
                rule = _Rule.BLOCK if content[161] == _REFUSE else admits
                found.append(_Policy(content[160], source, target, port, rule))
        return found
