"""Network devices by the kernel's own protocol (rtnetlink), with the standard library alone; ``ip`` may be missing.

Only what private networks of sessions need: a pair of devices, a device on top of another one that is born in a given
network namespace, addresses, and states. A :class:`Route` acts in the namespace in which it was opened, for good.
Source: rtnetlink(7), linux/if_link.h, linux/rtnetlink.h.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import Self

_NETLINK_ROUTE = 0
_NEWLINK, _DELLINK, _GETLINK, _NEWADDR = 16, 17, 18, 20
_ERROR, _DONE = 2, 3
_REQUEST, _ACK, _ROOT, _CREATE, _EXCLUSIVE = 0x1, 0x4, 0x300, 0x400, 0x200
_IFLA_IFNAME, _IFLA_LINK, _IFLA_LINKINFO, _IFLA_NET_NS_PID, _IFLA_IFALIAS = 3, 5, 18, 19, 20
_INFO_KIND, _INFO_DATA, _VETH_PEER, _MACVLAN_MODE = 1, 2, 1, 1
_MACVLAN_BRIDGE = 4
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
IFF_UP, IFF_NOARP = 0x1, 0x80
NAME_LIMIT = 15
TIMEOUT_S = 10.0


def _attribute(kind: int, content: bytes) -> bytes:
    length = 4 + len(content)
    return struct.pack("=HH", length, kind) + content + b"\0" * (-length % 4)


def _text(kind: int, text: str) -> bytes:
    return _attribute(kind, text.encode() + b"\0")


def _number(kind: int, number: int) -> bytes:
    return _attribute(kind, struct.pack("=I", number))


def _link(index: int = 0, flags: int = 0, change: int = 0) -> bytes:
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, flags, change)


def _attributes(content: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place + 4 <= len(content):
        length, kind = struct.unpack_from("=HH", content, place)
        if length < 4:
            return
        yield kind & 0x3FFF, content[place + 4 : place + length]
        place += (length + 3) & ~3


class Route:
    """One line to the kernel. Every method raises OSError with what it said."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE)
        self._socket.settimeout(TIMEOUT_S)
        self._socket.bind((0, 0))
        self._seq = 0

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, kind: int, flags: int, body: bytes) -> list[tuple[int, bytes]]:
        self._seq += 1
        self._socket.send(struct.pack("=IHHII", 16 + len(body), kind, flags | _REQUEST, self._seq, 0) + body)
        found: list[tuple[int, bytes]] = []
        while True:
            data = self._socket.recv(1 << 17)
            place = 0
            while place + 16 <= len(data):
                length, answer, _, seq, _ = struct.unpack_from("=IHHII", data, place)
                content = data[place + 16 : place + length]
                place += (length + 3) & ~3
                if seq != self._seq:
                    continue
                if answer == _DONE:
                    return found
                if answer == _ERROR:
                    number = -struct.unpack_from("=i", content)[0]
                    if number:
                        raise OSError(number, os.strerror(number))
                    return found
                found.append((answer, content))

    def _do(self, kind: int, body: bytes, flags: int = 0) -> None:
        self._ask(kind, flags | _ACK, body)

    def _index(self, name: str) -> int:
        for kind, content in self._ask(_GETLINK, _ACK, _link() + _text(_IFLA_IFNAME, name)):
            if kind == _NEWLINK:
                return int(struct.unpack_from("=i", content, 4)[0])
        raise OSError(errno.ENODEV, f"there is no network device {name}")

    def links(self) -> dict[str, str]:
        """Alias by name of every device."""
        found: dict[str, str] = {}
        for kind, content in self._ask(_GETLINK, _ROOT, _link()):
            if kind == _NEWLINK:
                texts = dict(_attributes(content[16:]))
                name = texts.get(_IFLA_IFNAME, b"").rstrip(b"\0").decode(errors="replace")
                found[name] = texts.get(_IFLA_IFALIAS, b"").rstrip(b"\0").decode(errors="replace")
        return found

    def add_pair(self, name: str, peer: str, alias: str) -> None:
        """A pair of devices that do not ask for addresses; what goes into one comes out of the other."""
        other = _attribute(_VETH_PEER, _link(flags=IFF_NOARP, change=IFF_NOARP) + _text(_IFLA_IFNAME, peer))
        info = _text(_INFO_KIND, "veth") + _attribute(_INFO_DATA, other)
        body = _link(flags=IFF_NOARP, change=IFF_NOARP) + _text(_IFLA_IFNAME, name) + _attribute(_IFLA_LINKINFO, info)
        self._do(_NEWLINK, body, _CREATE | _EXCLUSIVE)
        self._do(_NEWLINK, _link(self._index(name)) + _text(_IFLA_IFALIAS, alias))

    def add_child(self, parent: str, name: str, pid: int) -> None:
        """A device on top of ``parent`` in the network namespace of a process.

        Children of one parent reach each other, and neither the parent nor the host.
        """
        mode = _attribute(_INFO_DATA, _number(_MACVLAN_MODE, _MACVLAN_BRIDGE))
        info = _attribute(_IFLA_LINKINFO, _text(_INFO_KIND, "macvlan") + mode)
        index = self._index(parent)
        body = _link() + _text(_IFLA_IFNAME, name) + _number(_IFLA_LINK, index) + _number(_IFLA_NET_NS_PID, pid) + info
        self._do(_NEWLINK, body, _CREATE | _EXCLUSIVE)

    def set_up(self, name: str) -> None:
        self._do(_NEWLINK, _link(self._index(name), IFF_UP, IFF_UP))

    def add_address(self, name: str, address: str, prefix: int) -> None:
        packed = socket.inet_aton(address)
        head = struct.pack("=BBBBi", socket.AF_INET, prefix, 0, 0, self._index(name))
        body = head + _attribute(_IFA_LOCAL, packed) + _attribute(_IFA_ADDRESS, packed)
        self._do(_NEWADDR, body, _CREATE | _EXCLUSIVE)

    def remove(self, name: str) -> None:
        """With its peer and its children. Safe when there is none."""
        try:
            self._do(_DELLINK, _link() + _text(_IFLA_IFNAME, name))
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
