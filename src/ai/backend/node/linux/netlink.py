"""Creates and removes network devices of sessions by pyroute2: pairs (veth), macvlan, VXLAN; ``ip`` is not needed."""

from __future__ import annotations

import errno
import socket
from typing import Any, Self

EVERYBODY = "00:00:00:00:00:00"
"""The address under which a VXLAN device has the entry for unknown destinations, broadcasts included."""
_STATIC_STATE_MASK, _SELF_FLAG = 0xC0, 0x02  # permanent and never asked for; an entry of the device itself


class RouteSocket:
    """Creates, changes and removes network devices over a netlink socket of one thread and its network namespace.

    Methods raise OSError.
    """

    def __init__(self) -> None:
        from ai.backend.node.linux import netlink_socket

        self._collect = netlink_socket.collect
        self._route = netlink_socket.open_route()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._route.close()

    def _send_link_request(self, command: str, **values: Any) -> list[Any]:
        return self._collect(self._route.link, command, **values)

    def _index_of(self, name: str) -> int:
        (link,) = self._send_link_request("get", ifname=name)
        return int(link["index"])

    def links(self) -> dict[str, str]:
        """Returns the alias of every device, by name."""
        return {link.get("ifname"): link.get("ifalias") or "" for link in self._send_link_request("dump")}

    def add_pair(self, name: str, peer: str, alias: str) -> None:
        """Adds a pair of network devices (veth). A packet sent on one of the pair arrives at the other."""
        self._send_link_request("add", ifname=name, kind="veth", peer={"ifname": peer}, arp=False)
        self.set_alias(name, alias)

    def add_vxlan(self, name: str, vni: int, local: str, port: int, mtu: int) -> None:
        """Adds a tunnel whose peers are added by :meth:`add_forwarding_entry` alone, and which does not answer ARP."""
        self._send_link_request(
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

    def has_no_local_bypass(self, name: str) -> bool:
        """True if a VXLAN device does not use the kernel's shortcut for packets to tunnels of its own node.

        The shortcut passes packets as outgoing ones, which macvlan drops. Linux before 6.5 always uses the shortcut.
        """
        (link,) = self._send_link_request("get", ifname=name)
        return bool(link.get_nested("IFLA_LINKINFO", "IFLA_INFO_DATA", "IFLA_VXLAN_LOCALBYPASS") == 0)

    def add_forwarding_entry(self, name: str, hardware: str, address: str, port: int) -> None:
        """Makes a VXLAN device send packets for a hardware address to the peer at ``address`` and ``port``.

        Only :data:`EVERYBODY` may have many peers.
        """
        command = "append" if hardware == EVERYBODY else "replace"
        neighbour = {"ifindex": self._index_of(name), "lladdr": hardware, "dst": address, "port": port}
        self._collect(self._route.fdb, command, **neighbour, state=_STATIC_STATE_MASK, flags=_SELF_FLAG)

    def set_alias(self, name: str, alias: str) -> None:
        self._send_link_request("set", index=self._index_of(name), ifalias=alias)

    def set_master(self, name: str, bridge: str) -> None:
        """Attaches a network device to a bridge, as a port of the bridge."""
        self._send_link_request("set", index=self._index_of(name), master=self._index_of(bridge))

    def mtu_at(self, address: str) -> int:
        """Returns the MTU of the network device with an IPv4 address. Raises OSError if no device has the address."""
        for address_entry in self._collect(self._route.addr, "dump", family=socket.AF_INET):
            if address_entry.get("local") == address:
                (link,) = self._send_link_request("get", index=address_entry["index"])
                return int(link.get("mtu"))
        raise OSError(errno.EADDRNOTAVAIL, f"no network device here has the address {address}")

    def add_child(self, parent: str, name: str, namespace_fd: int, hardware: str = "") -> None:
        """Adds a macvlan device on top of the device ``parent``, in another network namespace.

        On this node, the macvlan devices of one parent reach only each other, and not the host.
        """
        address = {"address": hardware} if hardware else {}
        link = self._index_of(parent)
        self._send_link_request(
            "add", ifname=name, kind="macvlan", macvlan_mode="bridge", link=link, net_ns_fd=namespace_fd, **address
        )

    def set_up(self, name: str, *, arp: bool = True) -> None:
        """Brings a network device up. Without ``arp`` the device neither sends ARP requests nor answers them."""
        self._send_link_request("set", index=self._index_of(name), state="up", **({} if arp else {"arp": False}))

    def add_address(self, name: str, address: str, prefix: int) -> None:
        self._collect(self._route.addr, "add", index=self._index_of(name), address=address, prefixlen=prefix)

    def remove(self, name: str) -> None:
        """Removes a network device with its peer and children. Safe for an absent device."""
        try:
            self._send_link_request("del", ifname=name)
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
