"""Networks over several nodes: two namespaces stand for two machines, each with a runtime, or an engine, of its own.

What is left is asked of the kernel, never of the runtime's own books.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.docker_engine import CACHE, PYTHON_IMAGE, DockerEngine, end_engine
from tests.support.forked import ForkedPopen
from tests.support.namespaces import Machine, two_machines

DRIVER = "tests.component.runtime.overlay_driver"
SERVE = (
    "import socket, threading\n"
    "def serve(line):\n"
    "    with line:\n"
    "        got = b''.join(iter(lambda: line.recv(65536), b''))\n"
    "        line.sendall(f'{socket.gethostname()} got {len(got)}'.encode())\n"
    "def accept(server):\n"
    "    while True:\n"
    "        threading.Thread(target=serve, args=[server.accept()[0]], daemon=True).start()\n"
    "threading.Thread(target=accept, args=[socket.create_server(('', 4321))], daemon=True).start()\n"
    "print('serves')\n"
)
CALL = (
    "import socket\n"
    "with socket.create_connection(({host!r}, 4321), 30) as line:\n"
    "    there = line.getpeername()[0]\n"
    "    line.sendall(b'x' * 1_000_000)\n"
    "    line.shutdown(socket.SHUT_WR)\n"
    "    print(line.recv(64).decode(), there)\n"
)
REACH = "import socket, sys; s = socket.socket(); s.settimeout(0.3); print(s.connect_ex((sys.argv[1], 4321)))"


class Node:
    """A driver, and what it said."""

    def __init__(self, machine: Machine, *arguments: str) -> None:
        self.process = ForkedPopen(
            [sys.executable, "-m", DRIVER, machine.name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.input, self.output, self.errors = self.process.stdin, self.process.stdout, self.process.stderr

    def says(self) -> str:
        line: str = self.output.readline()
        assert line, self.errors.read()
        return line.strip()

    def run(self, code: str) -> str:
        self.input.write(json.dumps(code) + "\n")
        self.input.flush()
        return str(json.loads(self.says())).strip()

    def end(self) -> None:
        self.input.close()
        assert self.says() == "gone"
        self.process.wait(30)

    def kill(self) -> None:
        with suppress(OSError):
            self.process.kill()
        self.process.wait()
        for stream in (self.input, self.output, self.errors):
            stream.close()


def overlays(*machines: Machine) -> list[dict[str, Any]]:
    """As the manager settles them: an address for each node, then for the kernels."""
    hosts = ("main1", "sub1")
    addresses = {host: f"10.214.0.{number}" for number, host in enumerate(hosts, 3)}
    return [
        {
            "vni": 5000,
            "subnet": "10.214.0.0/28",
            "addresses": addresses,
            "gateway": f"10.214.0.{number + 1}",
            "mtu": 1450,
            "local": [machine.address, 4789],
            "peers": {hosts[1 - number]: [machines[1 - number].address, 4789]},
        }
        for number, machine in enumerate(machines)
    ]


@contextmanager
def nodes(tmp_path: Path, kind: str, machines: tuple[Machine, Machine], settings: list[Any]) -> Iterator[list[Node]]:
    session, image = str(uuid4()), PYTHON_IMAGE if kind == "docker" else "python"
    told = zip(machines, settings, ("main1", "sub1"), overlays(*machines), strict=True)
    made = [
        Node(m, kind, str(tmp_path / m.name / "state"), session, json.dumps(s), image, host, json.dumps(overlay))
        for m, s, host, overlay in told
    ]
    try:
        assert [node.says() for node in made] == ["ready", "ready"]
        yield made
    finally:
        for node in made:
            node.kill()


def check(machines: tuple[Machine, Machine], two: list[Node], *, shut: bool = False) -> None:
    """They reach each other by name, both ways and with large packets; nothing is left in the end.

    ``shut``: even their own nodes do not reach them.
    """
    assert [node.run(SERVE) for node in two] == ["serves", "serves"]
    assert two[0].run(CALL.format(host="sub1")) == "sub1 got 1000000 10.214.0.4"
    assert two[1].run(CALL.format(host="main1")) == "main1 got 1000000 10.214.0.3"
    for machine, address in ((m, a) for m in machines if shut for a in ("10.214.0.3", "10.214.0.4")):
        probe = machine.inside([sys.executable, "-c", REACH, address])
        assert subprocess.run(probe, capture_output=True, text=True, check=True).stdout.strip() not in ("", "0")
    assert "02:42:0a:d6:00:04" in "".join(machines[0].forwards())
    for node in two:
        node.end()
    for machine in machines:
        assert machine.links() == set()
        assert machine.forwards() == []


@pytest.mark.needs("root", "isolation", "ip")
def test_process_trees_of_two_nodes(tmp_path: Path) -> None:
    with two_machines() as machines, nodes(tmp_path, "process", machines, [{}, {}]) as two:
        check(machines, two, shut=True)


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder for engines: the sockets deep inside of theirs must have paths of at most 104 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="bai-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def begin(stack: ExitStack, engine: DockerEngine) -> None:
    stack.callback(end_engine, engine, engine.start())
    engine.ensure_image(PYTHON_IMAGE)


@pytest.mark.needs("docker", "ip")
def test_containers_of_two_engines(short: Path, tmp_path: Path) -> None:
    with two_machines() as machines, ExitStack() as stack:
        engines = [DockerEngine(short / str(n), namespace=machine.path) for n, machine in enumerate(machines)]
        with ThreadPoolExecutor(2) as several:
            list(several.map(partial(begin, stack), engines))
        interpreter = str(CACHE / "interpreter")
        settings = [{"docker_host": engine.host, "interpreter_directory": interpreter} for engine in engines]
        with nodes(tmp_path, "docker", machines, settings) as two:
            check(machines, two)
