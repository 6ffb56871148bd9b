"""Who may send into networks over several nodes, asked of the real kernel.

Two namespaces are nodes; two more stand for a session's container, which the first node forwards for, with the node's
own address where it leaves it, and for a stranger on the nodes' cable.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import pytest

from tests.support.cluster import wait_until
from tests.support.namespaces import Machine, two_machines

pytestmark = [pytest.mark.needs("root", "ip")]
PORT, NUMBER = 4789, 4242
STRANGER, INSIDE, GATEWAY = "192.168.77.66", "172.30.0.5", "172.30.0.1"
APPLY = (
    "import json, sys\n"
    "from ai.backend.node.linux import ipsec\n"
    "from tests.support.namespaces import enter\n"
    "enter(sys.argv[1])\n"
    "ipsec.states_of = lambda line: ()\n"  # not every kernel has ESP, and what is refused needs none
    "for mark, lines in json.loads(sys.argv[2]):\n"
    "    keys = [{'key_out': b'k' * 32 * encrypt, 'key_in': b'k' * 32 * encrypt} for _, _, encrypt in lines]\n"
    "    ends = [{'local': tuple(local), 'peer': tuple(peer)} for local, peer, _ in lines]\n"
    "    ipsec.apply(mark, [ipsec.SecuredLine(**a, **b) for a, b in zip(ends, keys)])\n"
)
SEND = (
    "import socket, struct, sys\n"
    "with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:\n"
    "    one.bind((sys.argv[1], 0))\n"
    "    frame = b'\\xff' * 6 + bytes.fromhex('024201020304') + b'\\x08\\x06' + bytes(60)\n"
    f"    one.sendto(struct.pack('!II', 0x08000000, {NUMBER} << 8) + frame, (sys.argv[2], {PORT}))\n"
    "    one.sendto(b'', (sys.argv[2], 9))\n"  # nobody is there, which is counted: the frame was dealt with before
)


@dataclass(frozen=True)
class Nodes:
    one: Machine
    two: Machine
    container: Machine

    def secure(self, *told: tuple[int, list[tuple[Machine, Machine, bool]]]) -> None:
        """What agents on the first node, by their marks, tell the kernel one after the other."""
        words = [(mark, [((a.address, PORT), (b.address, PORT), e) for a, b, e in lines]) for mark, lines in told]
        subprocess.run([sys.executable, "-c", APPLY, self.one.name, json.dumps(words)], check=True)

    def arrives(self, sender: Machine, source: str, target: Machine, address: str = "") -> bool:
        """Whether a frame from that address, sent to one of the target's, comes out of the target's device."""
        before, unheard = frames(target), no_ports(target)
        words = sender.inside([sys.executable, "-c", SEND, source, address or target.address])
        subprocess.run(words, check=True)
        wait_until(lambda: no_ports(target) > unheard, what="what was sent last")
        return frames(target) > before


def frames(node: Machine) -> int:
    said = subprocess.run(node.inside(["cat", "/proc/net/dev"]), capture_output=True, text=True, check=True).stdout
    return next(int(line.split()[2]) for line in said.splitlines() if line.strip().startswith("vx:"))


def no_ports(node: Machine) -> int:
    said = subprocess.run(node.inside(["cat", "/proc/net/snmp"]), capture_output=True, text=True, check=True).stdout
    names, values = (line.split() for line in said.splitlines() if line.startswith("Udp:"))
    return int(values[names.index("NoPorts")])


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with two_machines() as (one, two):
        container = Machine(f"bai-test-{uuid4().hex[:8]}-c", INSIDE)
        subprocess.run(["ip", "netns", "add", container.name], check=True)
        try:
            one.ip("link", "add", "out", "type", "veth", "peer", "in", "netns", container.name)
            one.ip("address", "add", f"{GATEWAY}/24", "dev", "out")
            container.ip("address", "add", f"{INSIDE}/24", "dev", "in")
            for machine, device in ((one, "out"), (container, "in"), (container, "lo")):
                machine.ip("link", "set", device, "up")
            container.ip("route", "add", "default", "via", GATEWAY)
            two.ip("address", "add", f"{STRANGER}/24", "dev", "cable")
            two.ip("route", "add", f"{INSIDE}/32", "via", one.address)
            forward = "open('/proc/sys/net/ipv4/ip_forward', 'w').write('1')"
            subprocess.run(one.inside([sys.executable, "-c", forward]), check=True)
            for node in (one, two):
                words = f"link add vx type vxlan id {NUMBER} local {node.address} dstport {PORT} nolearning"
                node.ip(*words.split())
                node.ip("link", "set", "vx", "up")
            yield Nodes(one, two, container)
        finally:
            subprocess.run(["ip", "netns", "delete", container.name], check=False)


def test_only_peers_send_into_a_network(nodes: Nodes) -> None:
    one, two, container = nodes.one, nodes.two, nodes.container
    ways = [
        (two, STRANGER, one, ""),
        (container, INSIDE, one, ""),
        (container, INSIDE, one, GATEWAY),
        (container, INSIDE, two, ""),
    ]
    assert all(nodes.arrives(*way) for way in ways), "without guards whoever knows the number can"
    nodes.secure((7, [(one, two, False)]))
    assert not any(nodes.arrives(*way) for way in ways)
    assert nodes.arrives(two, two.address, one)
    assert nodes.arrives(one, one.address, two)
    nodes.secure((8, [(one, Machine("", "192.168.77.3"), False)]), (8, []))
    assert not any(nodes.arrives(*way) for way in ways), "another agent of the node comes and goes"
    nodes.secure((7, [(one, two, True)]))
    assert not any(nodes.arrives(*way) for way in ways)
    assert not nodes.arrives(two, two.address, one), "nobody at all sends in plain what is to be encrypted"
    nodes.secure((7, []))
    assert all(nodes.arrives(*way) for way in ways)
    assert one.ip("xfrm", "policy") == ""
