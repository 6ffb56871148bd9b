"""Secures UDP ports between nodes by IPsec: only peers may send, encrypted if there is a key (ESP, AES-128-GCM).

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
from enum import IntEnum
from hashlib import sha256
from typing import Any

import msgspec

_ESP_PROTOCOL, _UDP_PROTOCOL = 50, 17
_DIRECTION_IN, _DIRECTION_OUT, _DIRECTION_FORWARD = 0, 1, 2
_ACTION_ALLOW, _ACTION_REFUSE = 0, 1
_EXTENDED_NUMBERS_FLAG = 0x80
_WINDOW_PACKETS = 128
_CIPHER_NAME, _KEY_BYTES, _AUTHENTICATION_BITS = b"rfc4106(gcm(aes))", 20, 128
_ANY_ADDRESS, _NULL_ADDRESS = "", "0.0.0.0"


class SecuredLine(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a connection between ``local`` and ``peer`` (IPv4 address, UDP port), encrypted by a key of 32 bytes
    each way.

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


def why_no_ipsec(mark: int) -> str:
    """Tries to encrypt by IPsec and returns why the Linux kernel cannot; empty if the trial succeeds."""
    if os.geteuid() != 0:
        return "encryption between nodes needs root, and the agent runs as another user"
    trial_state = _State("127.0.0.1", "127.0.0.1", sha256(f"probe {mark} {os.getpid()}".encode()).digest())
    try:
        with Ipsec(mark) as ipsec:
            try:
                ipsec.add_state(trial_state)
            finally:
                with suppress(ProcessLookupError):
                    ipsec.remove_state(trial_state.target, trial_state.spi)
    except OSError as error:
        return f"the kernel encrypts nothing between nodes (IPsec: ESP with AES-GCM): {error.strerror or error}"
    return ""


def apply(mark: int, lines: Collection[SecuredLine]) -> None:
    """Secures exactly ``lines``, and removes other IPsec states and policies of this mark. Idempotent. Raises OSError.

    When it returns, lines with keys pass encrypted packets only, and only peers reach the ports. Raises FileExistsError
    if another agent encrypts for a peer's port.
    """
    with Ipsec(mark) as ipsec:
        states = {(state.target, state.spi): state for line in lines for state in states_of(line)}
        kernel_states = ipsec.states()
        for state in states.values():
            if (state.target, state.spi) not in kernel_states:
                ipsec.add_state(state)
        policies = {policy for line in lines for policy in policies_of(line)}
        kernel_policies = ipsec.policies()
        for policy in sorted(policies.difference(kernel_policies), key=lambda policy: policy.rule):
            ipsec.set_policy(
                policy, is_update=any(policy.identity == kernel_policy.identity for kernel_policy in kernel_policies)
            )
        for policy in ipsec.policies():
            if policy not in policies:
                ipsec.remove_policy(policy)
        for target, spi in kernel_states:
            if (target, spi) not in states:
                ipsec.remove_state(target, spi)


class _State(msgspec.Struct, frozen=True):
    """An IPsec state: the key that encrypts packets in one direction between two addresses."""

    source: str
    target: str
    key: bytes

    @property
    def spi(self) -> int:
        """The SPI (number of the IPsec state) that packets carry, derived from the key without revealing the key.

        Small numbers are reserved.
        """
        return int.from_bytes(sha256(b"spi" + self.key).digest()[:4]) | 0x100


class _Rule(IntEnum):
    """Names the treatment of packets that match a policy: encrypt, admit or block.

    Rules are installed in this order, so that a port is never closed to its peers.
    """

    ENCRYPT, ADMIT, BLOCK = range(3)


_PRIORITY_OF_RULE = {_Rule.ENCRYPT: 0, _Rule.ADMIT: 0x7FFFFFFE, _Rule.BLOCK: 0x7FFFFFFF}
"""Priorities: the smallest applies first. An operator's own encryption rules precede what is admitted in plain."""


class _Policy(msgspec.Struct, frozen=True):
    direction: int
    source: str
    target: str
    port: int
    """The port of the target; the sender's port does not matter."""
    rule: _Rule = _Rule.ENCRYPT

    @property
    def identity(self) -> tuple[object, ...]:
        """The fields that identify a policy: the kernel has one policy for each combination."""
        return self.direction, self.source, self.target, self.port


def states_of(line: SecuredLine) -> Iterable[_State]:
    own_address, peer_address = line.local[0], line.peer[0]
    if not line.is_encrypted:
        return ()
    return _State(own_address, peer_address, line.key_out), _State(peer_address, own_address, line.key_in)


def policies_of(line: SecuredLine) -> Iterable[_Policy]:
    (own_address, own_port), (peer_address, peer_port) = line.local, line.peer
    if line.is_encrypted:
        yield _Policy(_DIRECTION_OUT, own_address, peer_address, peer_port)
        yield _Policy(_DIRECTION_IN, peer_address, own_address, own_port)
    else:
        yield _Policy(_DIRECTION_IN, peer_address, own_address, own_port, _Rule.ADMIT)
        yield _Policy(_DIRECTION_FORWARD, peer_address, _ANY_ADDRESS, peer_port, _Rule.ADMIT)
    yield _Policy(_DIRECTION_IN, _ANY_ADDRESS, _ANY_ADDRESS, own_port, _Rule.BLOCK)
    yield _Policy(_DIRECTION_FORWARD, _ANY_ADDRESS, peer_address, peer_port, _Rule.BLOCK)


def _address_and_prefix(address: str, mark: int) -> tuple[str, int]:
    """Returns an address with its prefix length, for a packet selector.

    For anybody no bit counts, and the address holds the mark: the kernel has one policy a selector, and agents need
    their own.
    """
    return (address, 32) if address else (socket.inet_ntoa(struct.pack("!I", mark)), 0)


def _selector(policy: _Policy, mark: int) -> dict[str, Any]:
    (target_address, target_bits), (source_address, source_bits) = (
        _address_and_prefix(policy.target, mark),
        _address_and_prefix(policy.source, mark),
    )
    return {
        "sel_daddr": target_address,
        "sel_saddr": source_address,
        "sel_dport": policy.port,
        "sel_dport_mask": 0xFFFF,
        "sel_family": socket.AF_INET,
        "sel_prefixlen_d": target_bits,
        "sel_prefixlen_s": source_bits,
        "sel_proto": _UDP_PROTOCOL,
    }


class Ipsec(AbstractContextManager["Ipsec"]):
    """Represents a socket for IPsec states and policies of one mark. Every method raises OSError with the kernel's
    error.
    """

    def __init__(self, mark: int) -> None:
        from ai.backend.node.linux import netlink_socket

        self.mark = mark
        self._library = netlink_socket
        self._xfrm = netlink_socket.open_xfrm()

    def __exit__(self, *_: object) -> None:
        self._xfrm.close()

    def _request(self, message_type: int, message: Any, extra_flags: int = 0) -> None:
        self._library.collect(self._xfrm.nlm_request, message, message_type, self._library.MESSAGE_FLAGS | extra_flags)

    def _list_entries(self, request_type: int, reply_type: int) -> list[Any]:
        replies = self._library.collect(
            self._xfrm.nlm_request, self._library.DumpRequest(), request_type, self._library.DUMP_FLAGS
        )
        return [reply for reply in replies if reply["header"]["type"] == reply_type]

    def add_state(self, state: _State) -> None:
        """Adds an encryption state. Raises FileExistsError if the state exists."""
        key = state.key[:_KEY_BYTES]
        cipher = {"name": _CIPHER_NAME, "key_bits": 8 * len(key), "check_bits": _AUTHENTICATION_BITS, "key": key}
        replay_window = {"bitmap_words": _WINDOW_PACKETS // 32, "packets": _WINDOW_PACKETS}
        message = self._library.StateMessage()
        message.update(self._library.NO_LIFETIME_LIMITS)
        message.update(
            daddr=state.target,
            spi=state.spi,
            proto=_ESP_PROTOCOL,
            saddr=state.source,
            reqid=self.mark,
            family=socket.AF_INET,
            flags=_EXTENDED_NUMBERS_FLAG,
            attrs=[("XFRMA_ALG_AEAD", cipher), ("XFRMA_REPLAY_ESN_VAL", replay_window)],
        )
        self._request(self._library.NEW_STATE, message, self._library.ONLY_NEW_FLAGS)

    def remove_state(self, target: str, spi: int) -> None:
        message = self._library.StateId()
        message.update(daddr=target, spi=spi, family=socket.AF_INET, proto=_ESP_PROTOCOL)
        self._request(self._library.DELETE_STATE, message)

    def states(self) -> list[tuple[str, int]]:
        """Returns target address and SPI of each encryption state of this mark."""
        states = self._list_entries(self._library.GET_STATE, self._library.NEW_STATE)
        return [(state["daddr"], state["spi"]) for state in states if state["reqid"] == self.mark]

    def set_policy(self, policy: _Policy, *, is_update: bool = False) -> None:
        """Adds an IPsec policy, or with ``is_update`` replaces the policy of this agent.

        Raises FileExistsError for another agent's.
        """
        all_algorithms_mask = 0xFFFFFFFF
        template = {
            "daddr": policy.target or _NULL_ADDRESS,
            "proto": _ESP_PROTOCOL,
            "family": socket.AF_INET,
            "saddr": policy.source or _NULL_ADDRESS,
            "reqid": self.mark,
            "optional": policy.rule is not _Rule.ENCRYPT,  # it carries the mark, and requires nothing
            **dict.fromkeys(("aalgos", "ealgos", "calgos"), all_algorithms_mask),
        }
        message = self._library.PolicyMessage()
        message.update(self._library.NO_LIFETIME_LIMITS)
        message.update(_selector(policy, self.mark))
        message.update(
            priority=_PRIORITY_OF_RULE[policy.rule],
            dir=policy.direction,
            action=_ACTION_REFUSE if policy.rule is _Rule.BLOCK else _ACTION_ALLOW,
            attrs=[("XFRMA_TMPL", template)],
        )
        try:
            self._request(self._library.UPDATE_POLICY if is_update else self._library.NEW_POLICY, message)
        except FileExistsError:
            traffic_text = f"goes from {policy.source or 'here'} to {policy.target or 'here'}, port {policy.port}"
            raise FileExistsError(errno.EEXIST, f"another agent of this node secures what {traffic_text}") from None

    def remove_policy(self, policy: _Policy) -> None:
        message = self._library.PolicyId()
        message.update(_selector(policy, self.mark), dir=policy.direction)
        self._request(self._library.DELETE_POLICY, message)

    def policies(self) -> list[_Policy]:
        """Returns the IPsec policies of the Linux kernel that belong to this agent, by the mark in their template."""
        policies = []
        for message in self._list_entries(self._library.GET_POLICY, self._library.NEW_POLICY):
            template = message.get_attr("XFRMA_TMPL")
            if template is not None and template["reqid"] == self.mark:
                policies.append(_policy_of(message, template))
        return policies


def _policy_of(message: Any, template: Any) -> _Policy:
    pass_rule = _Rule.ADMIT if template["optional"] else _Rule.ENCRYPT
    return _Policy(
        direction=message["dir"],
        source=message["sel_saddr"] if message["sel_prefixlen_s"] else _ANY_ADDRESS,
        target=message["sel_daddr"] if message["sel_prefixlen_d"] else _ANY_ADDRESS,
        port=message["sel_dport"],
        rule=_Rule.BLOCK if message["action"] == _ACTION_REFUSE else pass_rule,
    )
