"""Secures UDP ports between nodes by IPsec: only peers may send, and with keys all is encrypted (ESP, AES-128-GCM).

The states and policies of an agent in the Linux kernel have its mark (the ``reqid``), by which it finds them after a
restart. A port with a line is closed to all but its peers, at every address of this node, and nothing is forwarded to a
peer's port except from peers. The kernel applies no policies to its loopback.
Source: linux/xfrm.h, RFC 4106 (AES-GCM in ESP), RFC 4304 (extended sequence numbers).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256
from typing import Any

_ESP, _UDP = 50, 17
_IN, _OUT, _FORWARD = 0, 1, 2
_ALLOW, _REFUSE = 0, 1
_EXTENDED_NUMBERS = 0x80
_WINDOW_PACKETS = 128
_CIPHER, _KEY_BYTES, _CHECK_BITS = b"rfc4106(gcm(aes))", 20, 128
_ANYBODY, _NOWHERE = "", "0.0.0.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuredLine:
    """A connection between ``local`` and ``peer`` (IPv4 address, UDP port), encrypted by a key of 32 bytes each way.

    Without keys it is plain, and the peer is trusted by its address.
    """

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
    """Returns why this kernel cannot encrypt; empty if it can. Determined by a trial."""
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
    """Secures exactly these lines among those of this mark. Idempotent. Raises OSError.

    When it returns, lines with keys pass encrypted packets only, and only peers reach the ports. Raises FileExistsError
    if another agent encrypts for a peer's port.
    """
    with Ipsec(mark) as ipsec:
        states = {(s.target, s.spi): s for line in lines for s in _states(line)}
        existing = ipsec.states()
        for state in states.values():
            if (state.target, state.spi) not in existing:
                ipsec.add_state(state)
        policies = {policy for line in lines for policy in _policies(line)}
        held = ipsec.policies()
        for policy in sorted(policies.difference(held), key=lambda policy: policy.rule):
            ipsec.set_policy(policy, is_update=any(policy.slot == other.slot for other in held))
        for policy in ipsec.policies():
            if policy not in policies:
                ipsec.remove_policy(policy)
        for target, spi in existing:
            if (target, spi) not in states:
                ipsec.remove_state(target, spi)


@dataclass(frozen=True, slots=True)
class _State:
    """The encryption of one direction, by its key."""

    source: str
    target: str
    key: bytes

    @property
    def spi(self) -> int:
        """The SPI that packets carry; derived from the key without revealing it. Small numbers are reserved."""
        return int.from_bytes(sha256(b"spi" + self.key).digest()[:4]) | 0x100


class _Rule(IntEnum):
    """The treatment of matching packets, in the order of installation: a port is never closed to its peers."""

    ENCRYPT, ADMIT, BLOCK = range(3)


_PRIORITY = {_Rule.ENCRYPT: 0, _Rule.ADMIT: 0x7FFFFFFE, _Rule.BLOCK: 0x7FFFFFFF}
"""Priorities: the smallest applies first. An operator's own encryption rules precede what is admitted in plain."""


@dataclass(frozen=True, slots=True)
class _Policy:
    direction: int
    source: str
    target: str
    port: int
    """The port of the target; the sender's port does not matter."""
    rule: _Rule = _Rule.ENCRYPT

    @property
    def slot(self) -> tuple[object, ...]:
        """The key of a policy: the kernel has one policy for each."""
        return self.direction, self.source, self.target, self.port


def _states(line: SecuredLine) -> Iterable[_State]:
    own, remote = line.local[0], line.peer[0]
    if not line.is_encrypted:
        return ()
    return _State(own, remote, line.key_out), _State(remote, own, line.key_in)


def _policies(line: SecuredLine) -> Iterable[_Policy]:
    (own, port), (remote, remote_port) = line.local, line.peer
    if line.is_encrypted:
        yield _Policy(_OUT, own, remote, remote_port)
        yield _Policy(_IN, remote, own, port)
    else:
        yield _Policy(_IN, remote, own, port, _Rule.ADMIT)
        yield _Policy(_FORWARD, remote, _ANYBODY, remote_port, _Rule.ADMIT)
    yield _Policy(_IN, _ANYBODY, _ANYBODY, port, _Rule.BLOCK)
    yield _Policy(_FORWARD, _ANYBODY, remote, remote_port, _Rule.BLOCK)


def _end(address: str, mark: int) -> tuple[str, int]:
    """Returns an address and the number of its significant bits.

    For anybody no bit counts, and the address holds the mark: the kernel has one policy a selector, and agents need
    their own.
    """
    return (address, 32) if address else (socket.inet_ntoa(struct.pack("!I", mark)), 0)


def _selector(policy: _Policy, mark: int) -> dict[str, Any]:
    (target, bits), (source, source_bits) = _end(policy.target, mark), _end(policy.source, mark)
    return {
        "sel_daddr": target,
        "sel_saddr": source,
        "sel_dport": policy.port,
        "sel_dport_mask": 0xFFFF,
        "sel_family": socket.AF_INET,
        "sel_prefixlen_d": bits,
        "sel_prefixlen_s": source_bits,
        "sel_proto": _UDP,
    }


class Ipsec(AbstractContextManager["Ipsec"]):
    """A socket for states and policies of one mark. Every method raises OSError with the kernel's error."""

    def __init__(self, mark: int) -> None:
        from ai.backend.node.linux import netlink_socket

        self.mark = mark
        self._library = netlink_socket
        self._xfrm = netlink_socket.open_xfrm()

    def __exit__(self, *_: object) -> None:
        self._xfrm.close()

    def _do(self, kind: int, message: Any, flags: int = 0) -> None:
        self._library.collect(self._xfrm.nlm_request, message, kind, self._library.MESSAGE | flags)

    def _dump(self, request: int, kind: int) -> list[Any]:
        replies = self._library.collect(
            self._xfrm.nlm_request, self._library.DumpRequest(), request, self._library.DUMP
        )
        return [reply for reply in replies if reply["header"]["type"] == kind]

    def add_state(self, state: _State) -> None:
        """Adds a state. Raises FileExistsError if it exists."""
        key = state.key[:_KEY_BYTES]
        cipher = {"name": _CIPHER, "key_bits": 8 * len(key), "check_bits": _CHECK_BITS, "key": key}
        window = {"bitmap_words": _WINDOW_PACKETS // 32, "packets": _WINDOW_PACKETS}
        message = self._library.StateMessage()
        message.update(self._library.FOREVER)
        message.update(
            daddr=state.target,
            spi=state.spi,
            proto=_ESP,
            saddr=state.source,
            reqid=self.mark,
            family=socket.AF_INET,
            flags=_EXTENDED_NUMBERS,
            attrs=[("XFRMA_ALG_AEAD", cipher), ("XFRMA_REPLAY_ESN_VAL", window)],
        )
        self._do(self._library.NEW_STATE, message, self._library.ONLY_NEW)

    def remove_state(self, target: str, spi: int) -> None:
        message = self._library.StateId()
        message.update(daddr=target, spi=spi, family=socket.AF_INET, proto=_ESP)
        self._do(self._library.DELETE_STATE, message)

    def states(self) -> list[tuple[str, int]]:
        """Returns target and number of each state of this mark."""
        states = self._dump(self._library.GET_STATE, self._library.NEW_STATE)
        return [(state["daddr"], state["spi"]) for state in states if state["reqid"] == self.mark]

    def set_policy(self, policy: _Policy, *, is_update: bool = False) -> None:
        """Adds a policy, or replaces one of this agent (``is_ours``). Raises FileExistsError for another agent's."""
        everything = 0xFFFFFFFF
        template = {
            "daddr": policy.target or _NOWHERE,
            "proto": _ESP,
            "family": socket.AF_INET,
            "saddr": policy.source or _NOWHERE,
            "reqid": self.mark,
            "optional": policy.rule is not _Rule.ENCRYPT,  # it carries the mark, and requires nothing
            **dict.fromkeys(("aalgos", "ealgos", "calgos"), everything),
        }
        message = self._library.PolicyMessage()
        message.update(self._library.FOREVER)
        message.update(_selector(policy, self.mark))
        message.update(
            priority=_PRIORITY[policy.rule],
            dir=policy.direction,
            action=_REFUSE if policy.rule is _Rule.BLOCK else _ALLOW,
            attrs=[("XFRMA_TMPL", template)],
        )
        try:
            self._do(self._library.UPDATE_POLICY if is_update else self._library.NEW_POLICY, message)
        except FileExistsError:
            what = f"goes from {policy.source or 'here'} to {policy.target or 'here'}, port {policy.port}"
            raise FileExistsError(errno.EEXIST, f"another agent of this node secures what {what}") from None

    def remove_policy(self, policy: _Policy) -> None:
        message = self._library.PolicyId()
        message.update(_selector(policy, self.mark), dir=policy.direction)
        self._do(self._library.DELETE_POLICY, message)

    def policies(self) -> list[_Policy]:
        """Returns the policies whose template has this mark."""
        policies = []
        for message in self._dump(self._library.GET_POLICY, self._library.NEW_POLICY):
            template = message.get_attr("XFRMA_TMPL")
            if template is not None and template["reqid"] == self.mark:
                policies.append(_policy_of(message, template))
        return policies


def _policy_of(message: Any, template: Any) -> _Policy:
    admits = _Rule.ADMIT if template["optional"] else _Rule.ENCRYPT
    return _Policy(
        direction=message["dir"],
        source=message["sel_saddr"] if message["sel_prefixlen_s"] else _ANYBODY,
        target=message["sel_daddr"] if message["sel_prefixlen_d"] else _ANYBODY,
        port=message["sel_dport"],
        rule=_Rule.BLOCK if message["action"] == _REFUSE else admits,
    )
