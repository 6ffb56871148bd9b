"""Network devices by the kernel's own protocol (rtnetlink), with the standard library alone; ``ip`` may be missing.

Only what private networks of sessions need: a pair of devices, a device on top of another one that is born in a given
network namespace, a VXLAN device with the places of its peers, addresses, and states. A :class:`Route` acts in the
namespace in which it was opened, for good.
Source: rtnetlink(7), linux/if_link.h, linux/rtnetlink.h, linux/neighbour.h.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import Self

_NETLINK_ROUTE = 0
_NEWLINK, _DELLINK, _GETLINK, _NEWADDR, _GETADDR, _NEWNEIGH = 16, 17, 18, 20, 22, 28
_ERROR, _DONE = 2, 3
_REQUEST, _ACK, ROOT, _CREATE, _EXCLUSIVE, _REPLACE, _APPEND = 0x1, 0x4, 0x300, 0x400, 0x200, 0x100, 0x800
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_LINK, _IFLA_MASTER = 1, 3, 4, 5, 10
_IFLA_LINKINFO, _IFLA_NET_NS_PID, _IFLA_IFALIAS = 18, 19, 20
_INFO_KIND, _INFO_DATA, _VETH_PEER, _MACVLAN_MODE = 1, 2, 1, 1
_MACVLAN_BRIDGE = 4
_VXLAN_ID, _VXLAN_LOCAL, _VXLAN_LEARNING, _VXLAN_PORT, _VXLAN_SHORTCUT = 1, 4, 7, 15, 31
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_NDA_DST, _NDA_LLADDR, _NDA_PORT = 1, 2, 6
_NUD_STATIC, _NTF_SELF = 0xC0, 0x02  # permanent, and never asked after
IFF_UP, IFF_NOARP = 0x1, 0x80
EVERYBODY = "00:00:00:00:00:00"
"""Where a VXLAN device sends what has no place of its own, broadcasts included."""
TIMEOUT_S = 10.0


def attribute(kind: int, content: bytes) -> bytes:
    length = 4 + len(content)
    return struct.pack("=HH", length, kind) + content + b"\0" * (-length % 4)


def _text(kind: int, text: str) -> bytes:
    return attribute(kind, text.encode() + b"\0")


def _number(kind: int, number: int) -> bytes:
    return attribute(kind, struct.pack("=I", number))


def _hardware(address: str) -> bytes:
    return bytes.fromhex(address.replace(":", ""))


def mac_of(address: str) -> str:
    """The hardware address of whoever has this IPv4 address in a session's network, so that peers need not ask."""
    return ":".join(f"{byte:02x}" for byte in b"\x02\x42" + socket.inet_aton(address))


def _byte(kind: int, number: int) -> bytes:
    return attribute(kind, bytes([number]))


def _link(index: int = 0, flags: int = 0, change: int = 0) -> bytes:
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, flags, change)


def attributes(content: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place + 4 <= len(content):
        length, kind = struct.unpack_from("=HH", content, place)
        if length < 4:
            return
        yield kind & 0x3FFF, content[place + 4 : place + length]
        place += (length + 3) & ~3


class Line:
    """One line to the kernel, in the network namespace in which it was opened."""

    def __init__(self, protocol: int) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._socket.settimeout(TIMEOUT_S)
        self._socket.bind((0, 0))
        self._seq = 0

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, kind: int, flags: int, body: bytes) -> list[tuple[int, bytes]]:
        """What the kernel answers, each with its type. Raises OSError."""
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

    def do(self, kind: int, body: bytes, flags: int = 0) -> None:
        self.ask(kind, flags | _ACK, body)


class Route(Line):
    """About network devices. Every method raises OSError with what the kernel said."""

    def __init__(self) -> None:
        super().__init__(_NETLINK_ROUTE)

    def _index(self, name: str) -> int:
        for kind, content in self.ask(_GETLINK, _ACK, _link() + _text(_IFLA_IFNAME, name)):
            if kind == _NEWLINK:
                return int(struct.unpack_from("=i", content, 4)[0])
        raise OSError(errno.ENODEV, f"there is no network device {name}")

    def links(self) -> dict[str, str]:
        """Alias by name of every device."""
        found: dict[str, str] = {}
        for kind, content in self.ask(_GETLINK, ROOT, _link()):
            if kind == _NEWLINK:
                texts = dict(attributes(content[16:]))
                name = texts.get(_IFLA_IFNAME, b"").rstrip(b"\0").decode(errors="replace")
                found[name] = texts.get(_IFLA_IFALIAS, b"").rstrip(b"\0").decode(errors="replace")
        return found

    def add_pair(self, name: str, peer: str, alias: str) -> None:
        """A pair of devices that do not ask for addresses; what goes into one comes out of the other."""
        other = attribute(_VETH_PEER, _link(flags=IFF_NOARP, change=IFF_NOARP) + _text(_IFLA_IFNAME, peer))
        info = _text(_INFO_KIND, "veth") + attribute(_INFO_DATA, other)
        body = _link(flags=IFF_NOARP, change=IFF_NOARP) + _text(_IFLA_IFNAME, name) + attribute(_IFLA_LINKINFO, info)
        self.do(_NEWLINK, body, _CREATE | _EXCLUSIVE)
        self.set_alias(name, alias)

    def add_vxlan(self, name: str, vni: int, local: str, port: int, mtu: int) -> None:
        """A tunnel that knows its peers by :meth:`add_place` alone, and answers no questions for addresses.

        Between two tunnels of one node it goes as between nodes, if the kernel can (:meth:`has_no_shortcut`).
        """
        data = _number(_VXLAN_ID, vni) + attribute(_VXLAN_LOCAL, socket.inet_aton(local))
        data += _byte(_VXLAN_LEARNING, 0) + attribute(_VXLAN_PORT, struct.pack("!H", port))
        data += _byte(_VXLAN_SHORTCUT, 0)
        info = _text(_INFO_KIND, "vxlan") + attribute(_INFO_DATA, data)
        body = _link(flags=IFF_NOARP, change=IFF_NOARP) + _text(_IFLA_IFNAME, name) + _number(_IFLA_MTU, mtu)
        self.do(_NEWLINK, body + attribute(_IFLA_LINKINFO, info), _CREATE | _EXCLUSIVE)

    def has_no_shortcut(self, name: str) -> bool:
        """Whether a tunnel reaches others of its node (Linux 6.5 and newer). The kernel's shortcut between them passes
        packets on as if they were on their way out, and what receives them by macvlan drops them."""
        for kind, content in self.ask(_GETLINK, _ACK, _link() + _text(_IFLA_IFNAME, name)):
            if kind == _NEWLINK:
                info = dict(attributes(dict(attributes(content[16:])).get(_IFLA_LINKINFO, b"")))
                return dict(attributes(info.get(_INFO_DATA, b""))).get(_VXLAN_SHORTCUT) == b"\0"
        return False

    def add_place(self, name: str, hardware: str, address: str, port: int) -> None:
        """Tell a VXLAN device behind which peer a hardware address is; again is harmless. Of :data:`EVERYBODY` there
        are as many as are added, of another address the last one."""
        head = struct.pack("=BxHiHBB", socket.AF_BRIDGE, 0, self._index(name), _NUD_STATIC, _NTF_SELF, 0)
        body = head + attribute(_NDA_LLADDR, _hardware(hardware)) + attribute(_NDA_DST, socket.inet_aton(address))
        body += attribute(_NDA_PORT, struct.pack("!H", port))
        self.do(_NEWNEIGH, body, _CREATE | (_APPEND if hardware == EVERYBODY else _REPLACE))

    def set_alias(self, name: str, alias: str) -> None:
        self.do(_NEWLINK, _link(self._index(name)) + _text(_IFLA_IFALIAS, alias))

    def set_master(self, name: str, bridge: str) -> None:
        """Make a device a port of a bridge."""
        self.do(_NEWLINK, _link(self._index(name)) + _number(_IFLA_MASTER, self._index(bridge)))

    def mtu_at(self, address: str) -> int:
        """The largest packet of the device that has an IPv4 address. Raises OSError if none has it."""
        packed = socket.inet_aton(address)
        for kind, content in self.ask(_GETADDR, ROOT, struct.pack("=BBBBi", socket.AF_INET, 0, 0, 0, 0)):
            if kind == _NEWADDR and dict(attributes(content[8:])).get(_IFA_LOCAL) == packed:
                return self._mtu(int(struct.unpack_from("=i", content, 4)[0]))
        raise OSError(errno.EADDRNOTAVAIL, f"no network device here has the address {address}")

    def _mtu(self, index: int) -> int:
        for kind, content in self.ask(_GETLINK, _ACK, _link(index)):
            if kind == _NEWLINK and (found := dict(attributes(content[16:])).get(_IFLA_MTU)) is not None:
                return int(struct.unpack("=I", found)[0])
        raise OSError(errno.ENODEV, f"there is no network device {index}")

    def add_child(self, parent: str, name: str, pid: int, hardware: str = "") -> None:
        """A device on top of ``parent`` in the network namespace of a process, with a hardware address if one is given.

        Children of one parent reach each other, and neither the parent nor the host.
        """
        mode = attribute(_INFO_DATA, _number(_MACVLAN_MODE, _MACVLAN_BRIDGE))
        info = attribute(_IFLA_LINKINFO, _text(_INFO_KIND, "macvlan") + mode)
        index = self._index(parent)
        body = _link() + _text(_IFLA_IFNAME, name) + _number(_IFLA_LINK, index) + _number(_IFLA_NET_NS_PID, pid) + info
        if hardware:
            body += attribute(_IFLA_ADDRESS, _hardware(hardware))
        self.do(_NEWLINK, body, _CREATE | _EXCLUSIVE)

    def set_up(self, name: str) -> None:
        self.do(_NEWLINK, _link(self._index(name), IFF_UP, IFF_UP))

    def add_address(self, name: str, address: str, prefix: int) -> None:
        packed = socket.inet_aton(address)
        head = struct.pack("=BBBBi", socket.AF_INET, prefix, 0, 0, self._index(name))
        body = head + attribute(_IFA_LOCAL, packed) + attribute(_IFA_ADDRESS, packed)
        self.do(_NEWADDR, body, _CREATE | _EXCLUSIVE)

    def remove(self, name: str) -> None:
        """With its peer and its children. Safe when there is none."""
        try:
            self.do(_DELLINK, _link() + _text(_IFLA_IFNAME, name))
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
