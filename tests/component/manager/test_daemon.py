"""The manager as a process of its own, and its schema."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from ai.backend.infra.bus import Bus
from ai.backend.infra.database import Database
from ai.backend.infra.rpc.memory import MemoryLink
from ai.backend.manager.commands.start_server import serve
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.main import main
from tests.support.certificates import self_signed
from tests.support.monitors import DatadogAgent, monitor_entry_points


async def test_stopping_is_safe_at_any_time(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/m.db")
    manager = Manager(ManagerSettings(), database, Bus(), MemoryLink().manager)
    await manager.stop()
    await manager.start()
    await manager.stop()
    await manager.stop()
    await database.close()


async def _command(tmp_path: Path, *words: str, env: Mapping[str, str] | None = None) -> asyncio.subprocess.Process:
    environ = {
        **os.environ,
        **(env or {}),
        "BACKEND_MANAGER_DATA_DIR": str(tmp_path / "data"),
        "BACKEND_MANAGER_LISTEN__PORT": "0",
        "BACKEND_MANAGER_AGENT_LINK__BIND": "tcp://127.0.0.1:0",
    }
    code = "from ai.backend.manager.main import main; main(prog_name='mgr')"
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        *words,
        env=environ,
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def _output(process: asyncio.subprocess.Process) -> str:
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return out.decode()


async def test_the_daemon_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    first = await _output(await _command(tmp_path, "bootstrap"))
    assert len(re.findall(r"^BACKEND_ACCESS_KEY=AKIA[A-Z0-9]{16}$", first, re.MULTILINE)) == 2
    assert len(re.findall(r"^BACKEND_SECRET_KEY=[A-Za-z0-9]{40,}$", first, re.MULTILINE)) == 2
    assert "SECRET" not in await _output(await _command(tmp_path, "bootstrap"))
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700

    process = await _command(tmp_path, "start-server")
    assert process.stdout is not None
    told = ""
    while "listens on" not in told:
        line = await asyncio.wait_for(process.stdout.readline(), 30)
        assert line, told
        told += line.decode()
    found = re.search(r"http://([\d.]+):(\d+)", told)
    assert found is not None
    reader, writer = await asyncio.open_connection(found[1], int(found[2]))
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    reply = await reader.read()
    writer.close()
    assert reply.startswith(b"HTTP/1.1 200")
    assert b"v7.20230615" in reply
    process.send_signal(signal.SIGTERM)
    out, _ = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0, out.decode()


async def test_the_daemon_reports_its_figures_to_a_monitor(tmp_path: Path) -> None:
    await _output(await _command(tmp_path, "bootstrap"))
    with closing(DatadogAgent()) as agent:
        env = {
            "PYTHONPATH": f"{monitor_entry_points(tmp_path)}:{os.environ.get('PYTHONPATH', '')}",
            "BACKEND_MANAGER_MONITORS__STATISTICS": '["datadog"]',
            "BACKEND_MANAGER_MONITORS__INTERVAL_S": "1",
            "BACKEND_MANAGER_MONITORS__OPTIONS__DATADOG__PORT": str(agent.port),
        }
        process = await _command(tmp_path, "start-server", env=env)
        is_there = "backendai_manager_leader_elected:1.0|g".startswith
        await asyncio.to_thread(agent.lines, lambda lines: any(is_there(line.partition("|#")[0]) for line in lines))
        process.terminate()
        out, _ = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0, out.decode()


@pytest.mark.parametrize(
    "words", [("allow-agent", "agent-1", "not-a-key"), ("-f", "/nowhere/manager.toml", "bootstrap")]
)
async def test_a_wrong_command_says_so(tmp_path: Path, words: tuple[str, ...]) -> None:
    process = await _command(tmp_path, *words)
    out, _ = await process.communicate()
    assert process.returncode == 1
    assert b"Traceback" not in out


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return self_signed(tmp_path_factory.mktemp("certificate"))


async def test_the_api_speaks_tls(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    settings = ManagerSettings.model_validate(
        {
            "data-dir": str(tmp_path / "data"),
            "listen": {"port": 0},
            "agent-link": {"bind": "tcp://127.0.0.1:0"},
            "manager": {"ssl-enabled": True, "ssl-cert": str(cert), "ssl-privkey": str(key)},
        }
    )
    stop = asyncio.Event()
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(settings, stop, ready=told.set_result))
    endpoint = re.findall(r"https://[\d.:]+", await asyncio.wait_for(told, 30))[0]

    async def ask(*program: str, **more: str) -> tuple[int | None, str]:
        """As a program of its own: which certificates are trusted is read when it starts."""
        keys = {"BACKEND_ACCESS_KEY": "AKIATEST", "BACKEND_SECRET_KEY": "x" * 40}
        environ = {**os.environ, **keys, "HOME": str(tmp_path), "BACKEND_ENDPOINT": endpoint, **more}
        process = await asyncio.create_subprocess_exec(
            sys.executable, *program, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        out, _ = await process.communicate()
        return process.returncode, out.decode()

    versions = "from ai.backend.client.session import Session\nwith Session() as s: print(s.System.get_versions())"
    try:
        for environ in ({"SSL_CERT_FILE": str(cert)}, {"BACKEND_SKIP_SSLCERT_VALIDATION": "yes"}):
            code, said = await ask("-c", versions, **environ)
            assert code == 0, said
            assert "v7" in said
        code, said = await ask("-m", "ai.backend.cli.main", "ps")
        assert code != 0
        assert "certificate" in said.lower()
        assert "Traceback" not in said
    finally:
        stop.set()
        await serving


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"SSL_ENABLED": "yes", "SSL_CERT": "{cert}"}, "ssl-privkey"),
        ({"SSL_ENABLED": "yes", "SSL_CERT": "none.pem", "SSL_PRIVKEY": "{key}"}, "none.pem"),
        ({"SSL_ENABLED": "yes", "SSL_CERT": "{cert}", "SSL_PRIVKEY": "{cert}"}, "its key"),
        ({"NUM_PROC": "2"}, "needs PostgreSQL"),
        ({"PID_FILE": "none/manager.pid"}, "none/manager.pid"),
    ],
)
def test_a_daemon_that_cannot_start_says_why_in_a_line(
    tmp_path: Path, certificate: tuple[Path, Path], wrong: dict[str, str], word: str
) -> None:
    cert, key = certificate
    environ = {f"BACKEND_MANAGER_MANAGER__{k}": v.format(cert=cert, key=key) for k, v in wrong.items()}
    environ["BACKEND_MANAGER_DATA_DIR"] = str(tmp_path)
    result = CliRunner(env=environ).invoke(main, ["start-server"])
    assert result.exit_code == 1
    assert word in result.output.splitlines()[-1]
    assert result.exception is None or isinstance(result.exception, SystemExit)
