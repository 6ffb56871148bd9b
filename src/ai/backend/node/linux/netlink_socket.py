"""Opens netlink sockets of pyroute2, with the messages that pyroute2 0.9 lacks: XFRM, and two attributes of VXLAN.

Loaded with the first socket, since pyroute2 takes 14 MB and 0.2 s. Source: linux/xfrm.h, linux/if_link.h.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink import (
    NETLINK_XFRM,
    NLM_F_ACK,
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    NLM_F_REQUEST,
    nla,
    nlmsg,
)
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.nlsocket import NetlinkSocket
from pyroute2.netlink.rtnl.ifinfmsg.plugins.vxlan import vxlan

NEW_STATE, DELETE_STATE, GET_STATE = 0x10, 0x11, 0x12
NEW_POLICY, DELETE_POLICY, GET_POLICY, UPDATE_POLICY = 0x13, 0x14, 0x15, 0x19
MESSAGE_FLAGS, DUMP_FLAGS, ONLY_NEW_FLAGS = (
    NLM_F_REQUEST | NLM_F_ACK,
    NLM_F_REQUEST | NLM_F_DUMP,
    NLM_F_CREATE | NLM_F_EXCL,
)
DumpRequest = nlmsg

Fields = tuple[tuple[str, Any], ...]
_LIFETIME_FIELDS: Fields = (
    ("soft_byte_limit", "Q"),
    ("hard_byte_limit", "Q"),
    ("soft_packet_limit", "Q"),
    ("hard_packet_limit", "Q"),
    ("expiry_times", "32x"),
    ("current_use", "32x"),
)
NO_LIFETIME_LIMITS = dict.fromkeys([name for name, kind in _LIFETIME_FIELDS if kind == "Q"], (1 << 64) - 1)


class VxlanData(nla):
    """Attributes of a VXLAN device, up to Linux 6.5."""

    prefix = "IFLA_"
    nla_map = (*vxlan.nla_map, ("IFLA_VXLAN_VNIFILTER", "uint8"), ("IFLA_VXLAN_LOCALBYPASS", "uint8"))
    port_range = vxlan.port_range


class Address:
    """Encodes and decodes an IPv4 address in a field of 16 bytes that has room for an IPv6 address."""

    @staticmethod
    def encode_into(data: bytearray, offset: int, text: str | int) -> int:
        data.extend(socket.inet_aton(str(text)) + bytes(12))
        return offset + 16

    @staticmethod
    def decode_from(data: bytes, offset: int) -> tuple[str, int]:
        return socket.inet_ntoa(data[offset : offset + 4]), offset + 16


_SELECTOR_FIELDS: Fields = (
    ("sel_daddr", Address),
    ("sel_saddr", Address),
    ("sel_dport", ">H"),
    ("sel_dport_mask", ">H"),
    ("sel_sport", ">H"),
    ("sel_sport_mask", ">H"),
    ("sel_family", "H"),
    ("sel_prefixlen_d", "B"),
    ("sel_prefixlen_s", "B"),
    ("sel_proto", "B"),
    ("sel_pad", "3x"),
    ("sel_ifindex", "i"),
    ("sel_user", "I"),
)
_STATE_ID_FIELDS: Fields = (("daddr", Address), ("spi", ">I"), ("proto", "B"), ("id_pad", "3x"))


class AeadAlgorithm(nla):
    fields = (("name", "64s"), ("key_bits", "I"), ("check_bits", "I"), ("key", "s"))


class ReplayWindow(nla):
    fields = (
        ("bitmap_words", "I"),
        ("oseq", "I"),
        ("seq", "I"),
        ("oseq_hi", "I"),
        ("seq_hi", "I"),
        ("packets", "I"),
    )


class Template(nla):
    fields = (
        *_STATE_ID_FIELDS,
        ("family", "H"),
        ("family_pad", "2x"),
        ("saddr", Address),
        ("reqid", "I"),
        ("mode", "B"),
        ("share", "B"),
        ("optional", "B"),
        ("optional_pad", "x"),
        ("aalgos", "I"),
        ("ealgos", "I"),
        ("calgos", "I"),
    )


class StateMessage(nlmsg):
    """An IPsec state: the key for packets from one address to another (xfrm_usersa_info)."""

    prefix = "XFRMA_"
    fields = (
        *_SELECTOR_FIELDS,
        *_STATE_ID_FIELDS,
        ("saddr", Address),
        *_LIFETIME_FIELDS,
        ("stats", "12x"),
        ("seq", "I"),
        ("reqid", "I"),
        ("family", "H"),
        ("mode", "B"),
        ("replay_window", "B"),
        ("flags", "B"),
        ("pad", "7x"),
    )
    nla_map = ((18, "XFRMA_ALG_AEAD", "AeadAlgorithm"), (23, "XFRMA_REPLAY_ESN_VAL", "ReplayWindow"))
    AeadAlgorithm = AeadAlgorithm
    ReplayWindow = ReplayWindow


class StateId(nlmsg):
    """The identity of an IPsec state (xfrm_usersa_id)."""

    fields = (("daddr", Address), ("spi", ">I"), ("family", "H"), ("proto", "B"), ("pad", "x"))


class PolicyMessage(nlmsg):
    """An IPsec policy: the treatment of packets that a selector matches (xfrm_userpolicy_info)."""

    prefix = "XFRMA_"
    fields = (
        *_SELECTOR_FIELDS,
        *_LIFETIME_FIELDS,
        ("priority", "I"),
        ("index", "I"),
        ("dir", "B"),
        ("action", "B"),
        ("flags", "B"),
        ("share", "B"),
        ("pad", "4x"),
    )
    nla_map = ((5, "XFRMA_TMPL", "Template"),)
    Template = Template


class PolicyId(nlmsg):
    """The identity of an IPsec policy (xfrm_userpolicy_id)."""

    fields = (*_SELECTOR_FIELDS, ("index", "I"), ("dir", "B"), ("pad", "3x"))


def open_route() -> IPRoute:
    """Opens a socket for network devices in the network namespace of this thread. Raises OSError."""
    route = IPRoute()
    route.register_link_kind(module={"vxlan": VxlanData})
    return route


def open_xfrm() -> NetlinkSocket:
    """Opens a socket for IPsec in the network namespace of this thread. Raises OSError."""
    xfrm = NetlinkSocket(family=NETLINK_XFRM)
    xfrm.register_policy({NEW_STATE: StateMessage, NEW_POLICY: PolicyMessage})
    return xfrm


def collect(request: Callable[..., Iterable[Any]], *arguments: Any, **values: Any) -> list[Any]:
    """Sends a request and returns the kernel's replies. Raises OSError with the kernel's error number."""
    try:
        return list(request(*arguments, **values))
    except NetlinkError as error:
        raise OSError(error.code, os.strerror(error.code)) from None
