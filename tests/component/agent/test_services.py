"""Services of real sessions through a real agent: an OpenSSH client, a web terminal, a web server."""

from __future__ import annotations

import asyncio
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from ai.backend.agent.composition import Agent
from ai.backend.agent.kit import build
from ai.backend.common.errors import Forbidden, InvalidInput, NotFound, Unavailable
from ai.backend.common.states import KernelStatus
from ai.backend.common.wire.agent import KernelSpec, RestartKernel
from ai.backend.common.wire.execution import DownloadFiles, KernelRef, OpenPort, StartService, StopService
from ai.backend.common.wire.reports import KernelObservation
from ai.backend.infra.ssh_keys import generate_key_pair
from tests.component.agent.test_process_runtime import RealBench, real
from tests.support.docker_engine import PYTHON_IMAGE, DockerEngine
from tests.support.local_port import local_port

__all__ = ["real"]
SIZE = "python3 -c 'import os; print(*os.get_terminal_size())'"


@pytest.fixture(autouse=True)
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A built console, as far as the kit needs it."""
    terminal = tmp_path / "bundle" / "terminal"
    terminal.mkdir(parents=True)
    for name in ("xterm.js", "xterm.css", "addon-fit.js"):
        (terminal / name).write_text("")
    monkeypatch.setattr(build, "find_bundle", lambda: tmp_path / "bundle")
    return tmp_path / "bundle"


@pytest_asyncio.fixture
async def docker(real: RealBench, docker_engine: DockerEngine) -> RealBench:
    real.options = {
        "agent": {"runtime": "docker"},
        "runtime": {"docker-host": docker_engine.host},
        "kernel-lifecycles": {"create-timeout": 60.0, "ready-timeout": 60.0},
    }
    return real


async def started(bench: RealBench, agent: Agent, spec: KernelSpec, name: str, **fields: Any) -> int:
    """The port of a service that has been started."""
    request = StartService(kernel_id=spec.kernel_id, name=name, **fields)
    state = await agent.commands.start_service(request)
    assert state.status == "running", state
    return state.ports[0]


async def execute(*arguments: str, data: bytes = b"") -> tuple[int, bytes, bytes]:
    process = await asyncio.create_subprocess_exec(
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate(data)
    assert process.returncode is not None
    return process.returncode, out, err


class Client:
    """OpenSSH on one session, with the key that the session gives out."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self._options = ["-F", "none", "-i", str(folder / "id_container"), "-o", "IdentitiesOnly=yes"]
        self._options += ["-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={folder}/known"]
        self._options += ["-o", "LogLevel=ERROR"]
        self._port = str(port)

    async def fetch_key(self, agent: Agent, kernel_id: str) -> None:
        wanted = DownloadFiles(kernel_id=kernel_id, paths=["id_container"], max_bytes=65_536)
        (file,) = await agent.commands.download_files(wanted)
        with tarfile.open(fileobj=io.BytesIO(file.tar)) as tar:
            member = tar.getmember("id_container")
            assert member.mode == 0o600
            tar.extract(member, self.folder, filter="data")
        os.chmod(self.folder / "id_container", 0o600)

    async def ssh(self, *arguments: str, data: bytes = b"") -> tuple[int, bytes, bytes]:
        return await execute("ssh", *self._options, "-p", self._port, "work@127.0.0.1", *arguments, data=data)

    async def scp(self, *arguments: str) -> int:
        return (await execute("scp", *self._options, "-P", self._port, *arguments))[0]

    async def sftp(self, batch: str) -> tuple[int, bytes, bytes]:
        arguments = ("-P", self._port, "-b", "-", "work@127.0.0.1")
        return await execute("sftp", *self._options, *arguments, data=batch.encode())


async def check_ssh(bench: RealBench, agent: Agent, spec: KernelSpec, folder: Path) -> None:
    port = await started(bench, agent, spec, "sshd")
    async with local_port(agent.commands, spec.kernel_id, port) as local:
        client = Client(folder, local)
        await client.fetch_key(agent, spec.kernel_id)
        command = "pwd; id -u; echo $BACKENDAI_SESSION_NAME; cat; echo problem >&2; exit 7"
        code, out, err = await client.ssh(command, data=b"input\n")
        home, uid, name, text = out.decode().split("\n")[:4]
        assert (code, home, name, text, err) == (7, "/home/work", spec.session_name, "input", b"problem\n")
        assert uid != "0"
        code, out, _ = await client.ssh("-tt", "stty size; test -t 0 && echo terminal")
        assert (code, b"terminal" in out) == (0, True)

        big = folder / "big"
        big.write_bytes(os.urandom(3_000_000))
        assert await client.scp(str(big), "work@127.0.0.1:copied") == 0
        assert await client.scp("-O", "work@127.0.0.1:copied", str(folder / "back")) == 0  # the old protocol
        assert (folder / "back").read_bytes() == big.read_bytes()
        code, out, _ = await client.sftp(f"rename copied moved\nget moved {folder}/again\nls\n")
        assert (code, b"moved" in out) == (0, True)
        assert (folder / "again").read_bytes() == big.read_bytes()

        (folder / "id_container").unlink()
        code, _, err = await client.ssh("true")
        assert (code, b"Permission denied" in err) == (255, True)
        if (own := folder / "own").exists():
            own.replace(folder / "id_container")
            assert (await client.ssh("echo in"))[:2] == (0, b"in\n"), "by the user's own key"


class Page:
    """A web terminal as its page speaks to it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.seen = b""

    async def type(self, text: str) -> None:
        await self.socket.send_bytes(b"0" + text.encode())

    async def wait(self, text: str) -> bytes:
        async with asyncio.timeout(30):
            while text.encode() not in self.seen:
                message = await self.socket.receive()
                assert message.type is aiohttp.WSMsgType.BINARY, message
                self.seen += message.data
        seen, self.seen = self.seen, b""
        return seen


async def check_terminal(bench: RealBench, agent: Agent, spec: KernelSpec) -> None:
    port = await started(bench, agent, spec, "ttyd")
    async with local_port(agent.commands, spec.kernel_id, port) as local, aiohttp.ClientSession() as web:
        url = f"http://127.0.0.1:{local}"
        async with web.get(url) as reply:
            assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
            assert 'src="xterm.js"' in await reply.text()
        for name, kind in (("xterm.js", "text/javascript"), ("page.js", "text/javascript"), ("xterm.css", "text/css")):
            async with web.get(f"{url}/{name}") as reply:
                assert (reply.status, reply.content_type) == (200, kind)
        async with web.get(f"{url}/..%2Frun.py") as reply:
            assert reply.status == 404
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await web.ws_connect(f"{url}/ws?key={'k' * 32}", headers={"Origin": "http://elsewhere.example"})

        address = f"{url}/ws?key={'k' * 32}&rows=31&cols=97"
        async with web.ws_connect(address, headers={"Origin": url}) as socket:
            page = Page(socket)
            await page.type(f"PS1='$ '; size() {{ {SIZE}; }}; X=kept; echo ready-$((1+1))\n")
            await page.wait("ready-2")
            await page.type("size; pwd; echo 'grüße 漢字 🙂'; echo end-$((2+2))\n")
            seen = (await page.wait("end-4")).decode()
            assert "97 31" in seen
            assert "/home/work" in seen
            assert "grüße 漢字 🙂" in seen
            await socket.send_bytes(b"1" + json.dumps({"rows": 40, "cols": 120}).encode())
            await page.type("size; echo end-$((3+3))\n")
            assert b"120 40" in await page.wait("end-6")
        async with web.ws_connect(address) as socket:  # the page was loaded again
            page = Page(socket)
            assert "漢字".encode() in await page.wait("end-6")
            await page.type("echo still-$X\n")
            await page.wait("still-kept")
            async with web.ws_connect(address) as other:
                assert await closed(socket) == 4001
                await Page(other).type("exit\n")
                assert await closed(other) == 4000


async def closed(socket: aiohttp.ClientWebSocketResponse) -> int | None:
    """Read what is still to come; return the code that the other side closed with."""
    async with asyncio.timeout(30):
        while (await socket.receive()).type is aiohttp.WSMsgType.BINARY:
            pass
    return socket.close_code


async def page_of(agent: Agent, spec: KernelSpec, port: int, path: str) -> str:
    async with (
        local_port(agent.commands, spec.kernel_id, port) as local,
        aiohttp.ClientSession() as web,
        web.get(f"http://127.0.0.1:{local}/{path}") as reply,
    ):
        assert reply.status == 200
        return await reply.text()


def names_of(observation: KernelObservation) -> list[str]:
    return [str(port["name"]) for port in observation.service_ports or ()]


@pytest.mark.needs("bwrap", "ssh")
async def test_services_of_process_trees(real: RealBench, tmp_path: Path) -> None:
    real.options = {"runtime": {"network": "none"}}
    agent = await real.start()
    public, private = generate_key_pair("user@local")
    (tmp_path / "own").write_text(private)
    (tmp_path / "own").chmod(0o600)
    spec = await real.run(agent, preopen_ports=[9000], ssh_public_key=public)
    (running,) = [o for o in real.manager.observations if o.status is KernelStatus.RUNNING]
    assert {"http", "9000", "sshd", "ttyd"} <= set(names_of(running))
    await check_ssh(real, agent, spec, tmp_path)
    await check_terminal(real, agent, spec)

    port = await started(real, agent, spec, "http")
    assert port == 8000
    assert (await page_of(agent, spec, port, "id_container.pub")).startswith("ssh-ed25519 ")
    with pytest.raises(NotFound, match="it has: http"):
        await started(real, agent, spec, "nothing")

    await agent.stop()  # services live on without their agent
    agent = await real.start()
    listed = {s.name: s for s in await agent.commands.list_services(KernelRef(kernel_id=spec.kernel_id))}
    assert {name: listed[name].status for name in ("http", "sshd", "ttyd", "9000")} == {
        "http": "running",
        "sshd": "running",
        "ttyd": "running",
        "9000": "stopped",
    }
    assert listed["ttyd"].url_template == "http://{host}:{port}/"
    await agent.commands.stop_service(StopService(kernel_id=spec.kernel_id, name="http"))
    listed = {s.name: s for s in await agent.commands.list_services(KernelRef(kernel_id=spec.kernel_id))}
    assert (listed["http"].status, listed["http"].ports) == ("stopped", [])
    with pytest.raises(InvalidInput, match="no argument"):
        await started(real, agent, spec, "http", arguments={"--evil": "1"})

    await agent.commands.restart_kernel(RestartKernel(kernel_id=spec.kernel_id, attempt=spec.attempt + 1))
    async with asyncio.timeout(30):
        while not [o for o in real.manager.observations if o.attempt == spec.attempt + 1 and o.status == "RUNNING"]:
            real.manager.news.clear()
            await real.manager.news.wait()
    listed = {s.name: s for s in await agent.commands.list_services(KernelRef(kernel_id=spec.kernel_id))}
    assert {s.status for s in listed.values()} == {"stopped"}


@pytest.mark.needs("bwrap", "ssh")
async def test_own_services_on_a_shared_network_listen_on_unix_sockets(real: RealBench, tmp_path: Path) -> None:
    real.options = {"runtime": {"network": "host"}}
    agent = await real.start()
    spec = await real.run(agent)
    ports = {await started(real, agent, spec, name) for name in ("sshd", "ttyd")}
    assert ports == {2200, 7681}
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
    await check_ssh(real, agent, spec, tmp_path)
    await check_terminal(real, agent, spec)


@pytest.mark.needs("bwrap", "ssh")
async def test_a_session_cannot_lead_tunnels_to_sockets_of_others(real: RealBench, tmp_path: Path) -> None:
    real.options = {"runtime": {"network": "host"}}
    agent = await real.start()
    spec = await real.run(agent)
    port = await started(real, agent, spec, "ttyd")
    (home,) = (path for path in real.data_dir.rglob(spec.kernel_id) if path.parent.name == "homes")
    request = OpenPort(kernel_id=spec.kernel_id, port=port)
    await (await agent.commands.open_port(request)).close()
    others = await asyncio.start_unix_server(lambda _reader, writer: writer.close(), tmp_path / "others.sock")
    async with others:
        (home / ".services" / str(port)).unlink()
        (home / ".services" / str(port)).symlink_to(tmp_path / "others.sock")
        with pytest.raises(Unavailable):
            await agent.commands.open_port(request)
        (home / ".services").rename(home / "away")
        (tmp_path / str(port)).symlink_to("others.sock")
        (home / ".services").symlink_to(tmp_path)
        with pytest.raises(Unavailable):
            await agent.commands.open_port(request)


@pytest.mark.needs("bwrap")
async def test_nothing_is_served_on_a_shared_network_without_consent(real: RealBench) -> None:
    real.options = {"runtime": {"network": "host"}}
    agent = await real.start()
    spec = await real.run(agent)
    with pytest.raises(Forbidden, match="shared-network"):
        await started(real, agent, spec, "http")
    await agent.stop()
    real.options = {"runtime": {"network": "host"}, "services": {"shared-network": True}}
    agent = await real.start()
    port = await started(real, agent, spec, "http")
    assert port != 8000  # a free one of the host
    assert "id_container" in await page_of(agent, spec, port, "")


DOCKERFILE = f"""
FROM {PYTHON_IMAGE}
LABEL ai.backend.service-ports="files:http:9001,opened:preopen:9002" ai.backend.endpoint-ports="files"
COPY files.json /etc/backend.ai/service-defs/files.json
COPY bootstrap.sh /opt/container/bootstrap.sh
"""
FILES_SERVICE = {
    "prestart": [{"action": "write_file", "args": {"body": ["on {ports[0]}"], "filename": "{home}/made.txt"}}],
    "command": "exec python3 -m http.server --directory $HOME {ports[0]}",
    "url_template": "http://{host}:{port}/made.txt",
}
BOOTSTRAP = "echo booting; id -u > $HOME/booted; python3 -m http.server --bind 127.0.0.1 9002 >/dev/null 2>&1 &\n"


def build_image(engine: DockerEngine, name: str, folder: Path) -> None:
    context = folder / "context.tar"
    with tarfile.open(context, "w") as tar:
        texts = {"Dockerfile": DOCKERFILE, "files.json": json.dumps(FILES_SERVICE), "bootstrap.sh": BOOTSTRAP}
        for file, text in texts.items():
            entry = tarfile.TarInfo(file)
            entry.size, entry.mode = len(text), 0o644
            tar.addfile(entry, io.BytesIO(text.encode()))
    status, answer = engine.call("POST", f"/build?t={name}", context)
    assert status == 200, answer
    assert engine.call("GET", f"/images/{name}/json")[0] == 200, answer


@pytest.mark.needs("docker", "ssh")
async def test_services_of_containers(docker: RealBench, docker_engine: DockerEngine, tmp_path: Path) -> None:
    build_image(docker_engine, "services:1", tmp_path)
    agent = await docker.start()
    spec = await docker.run(agent, image="services:1")
    (running,) = [o for o in docker.manager.observations if o.status is KernelStatus.RUNNING]
    told = {port["name"]: port["is_inference"] for port in running.service_ports or ()}
    assert told == {"files": True, "opened": False, "sshd": False, "ttyd": False}
    # The image's bootstrap has started this one before the session ran.
    port = await started(docker, agent, spec, "opened")
    assert await page_of(agent, spec, port, "booted") == "59500\n"
    port = await started(docker, agent, spec, "files")
    assert await page_of(agent, spec, port, "made.txt") == "on 9001"
    await check_ssh(docker, agent, spec, tmp_path)
    await check_terminal(docker, agent, spec)
