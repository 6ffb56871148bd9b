"""Makes and removes network devices for private networks of sessions, by pyroute2; the ``ip`` program may be missing.

The devices are pairs (veth), devices on top of another one (macvlan), and VXLAN devices with the addresses of their
peers. A :class:`Route` belongs to the thread that opens it, and acts in the network namespace in which it was opened.
"""

from __future__ import annotations

import errno
import socket
from typing import Any, Self

EVERYBODY = "00:00:00:00:00:00"
"""The entry of a VXLAN device for unknown destinations, broadcasts included."""
_STATIC, _SELF = 0xC0, 0x02  # permanent and never asked for; an entry of the device itself


class Route:
    """A socket for requests about network devices. Every method raises OSError with the kernel's error."""

    def __init__(self) -> None:
        from ai.backend.node.linux import netlink_socket

        self._collect = netlink_socket.collect
        self._route = netlink_socket.open_route()

    def close(self) -> None:
        self._route.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _link(self, command: str, **values: Any) -> list[Any]:
        return self._collect(self._route.link, command, **values)

    def _index(self, name: str) -> int:
        (link,) = self._link("get", ifname=name)
        return int(link["index"])

    def links(self) -> dict[str, str]:
        """Return the alias of every device, by name."""
        return {link.get("ifname"): link.get("ifalias") or "" for link in self._link("dump")}

    def add_pair(self, name: str, peer: str, alias: str) -> None:
        """Add two devices; packets that one of them sends arrive at the other one."""
        self._link("add", ifname=name, kind="veth", peer={"ifname": peer}, arp=False)
        self.set_alias(name, alias)

    def add_vxlan(self, name: str, vni: int, local: str, port: int, mtu: int) -> None:
        """Add a tunnel that knows its peers by :meth:`add_place` alone, and does not answer ARP.

        Two tunnels of one node reach each other as those of two nodes do, if the kernel can (:meth:`has_no_shortcut`).
        """
        self._link(
            "add",
            ifname=name,
            kind="vxlan",
            arp=False,
            mtu=mtu,
            vxlan_id=vni,
            vxlan_local=local,
            vxlan_learning=0,
            vxlan_port=port,
            vxlan_localbypass=0,
        )

    def has_no_shortcut(self, name: str) -> bool:
        """Return whether a tunnel reaches others of its node (Linux 6.5 and newer).

        The kernel's shortcut between them passes packets on as if they were on their way out, and macvlan drops them.
        """
        (link,) = self._link("get", ifname=name)
        return bool(link.get_nested("IFLA_LINKINFO", "IFLA_INFO_DATA", "IFLA_VXLAN_LOCALBYPASS") == 0)

    def add_place(self, name: str, hardware: str, address: str, port: int) -> None:
        """Tell a VXLAN device which peer has a hardware address; repeating it is harmless.

        For :data:`EVERYBODY` the device keeps all peers, for another address the last one.
        """
        command = "append" if hardware == EVERYBODY else "replace"
        place = {"ifindex": self._index(name), "lladdr": hardware, "dst": address, "port": port}
        self._collect(self._route.fdb, command, **place, state=_STATIC, flags=_SELF)

    def set_alias(self, name: str, alias: str) -> None:
        self._link("set", index=self._index(name), ifalias=alias)

    def set_master(self, name: str, bridge: str) -> None:
        """Make a device a port of a bridge."""
        self._link("set", index=self._index(name), master=self._index(bridge))

    def mtu_at(self, address: str) -> int:
        """Return the largest packet of the device that has an IPv4 address. Raises OSError if no device has it."""
        for entry in self._collect(self._route.addr, "dump", family=socket.AF_INET):
            if entry.get("local") == address:
                (link,) = self._link("get", index=entry["index"])
                return int(link.get("mtu"))
        raise OSError(errno.EADDRNOTAVAIL, f"no network device here has the address {address}")

    def add_child(self, parent: str, name: str, namespace: int, hardware: str = "") -> None:
        """Add a device on top of ``parent`` in the network namespace of a descriptor.

        Children of one parent reach each other, and neither the parent nor the host.
        """
        address = {"address": hardware} if hardware else {}
        link = self._index(parent)
        self._link("add", ifname=name, kind="macvlan", macvlan_mode="bridge", link=link, net_ns_fd=namespace, **address)

    def set_up(self, name: str, *, arp: bool = True) -> None:
        """Bring a device up; without ``arp`` it neither asks for addresses nor answers."""
        self._link("set", index=self._index(name), state="up", **({} if arp else {"arp": False}))

    def add_address(self, name: str, address: str, prefix: int) -> None:
        self._collect(self._route.addr, "add", index=self._index(name), address=address, prefixlen=prefix)

    def remove(self, name: str) -> None:
        """Remove a device with its peer and its children. Safe when there is none."""
        try:
            self._link("del", ifname=name)
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
