"""The services of ``deploy/compose``: their commands on Debian's programs, since no image can be fetched here."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cluster import free_port, wait_until
from tests.support.postgres import program

DEPLOY = Path(__file__).parents[2] / "deploy"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())["services"]
pytestmark = [pytest.mark.needs("postgres", "redis", "etcd"), pytest.mark.timeout(120)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the server's user can enter."""
    with tempfile.TemporaryDirectory(prefix="compose-", ignore_cleanup_errors=True) as text:
        Path(text).chmod(0o777)
        yield Path(text)


def _published(name: str) -> int:
    ((host, port, _),) = (entry.split(":") for entry in SERVICES[name]["ports"])
    assert host == "127.0.0.1", "only this machine reaches them"
    return int(port)


def test_the_settings_name_the_ports() -> None:
    settings = tomllib.loads((DEPLOY / "config/manager.toml").read_text())
    addresses = (settings["db"]["addr"], settings["redis"]["addr"], settings["etcd"]["addr"])
    assert [address["port"] for address in addresses] == [_published(name) for name in ("postgres", "redis", "etcd")]
    environment = SERVICES["postgres"]["environment"]
    default = re.fullmatch(r"\$\{BACKENDAI_DB_PASSWORD:-(.+)\}", environment["POSTGRES_PASSWORD"])
    assert default is not None
    assert default[1] == settings["db"]["password"]
    assert environment["POSTGRES_USER"] == settings["db"]["user"]
    assert environment["POSTGRES_DB"] == settings["db"]["name"]


def _run(command: list[str], folder: Path, is_healthy: Any, **user: Any) -> None:
    """Starts a service and asserts that it becomes healthy and goes on."""
    with (folder / "log").open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, **user)
    try:
        wait_until(lambda: process.poll() is not None or is_healthy(), timeout_s=60, what=(folder / "log").read_text())
        assert process.poll() is None, (folder / "log").read_text()
    finally:
        process.terminate()
        process.wait(30)


def test_postgres(folder: Path) -> None:
    initdb, check = program("initdb"), program("pg_isready")
    assert initdb is not None
    assert check is not None
    user: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    service = SERVICES["postgres"]
    arguments = service["environment"]["POSTGRES_INITDB_ARGS"].split()
    subprocess.run([initdb, "-D", f"{folder}/data", *arguments], check=True, capture_output=True, cwd=folder, **user)
    port, (first, *command) = free_port(), service["command"]
    assert first == "postgres"
    kind, *health = service["healthcheck"]["test"]
    assert (kind, health[0]) == ("CMD", "pg_isready")
    asked = [check, "-h", "127.0.0.1", "-p", str(port), *health[1:]]
    _run(
        [str(program("postgres")), "-D", f"{folder}/data", "-k", str(folder), "-p", str(port), *command],
        folder,
        lambda: subprocess.run(asked, check=False, capture_output=True).returncode == 0,
        **user,
    )


def test_redis(folder: Path) -> None:
    service, port = SERVICES["redis"], free_port()
    first, *command = service["command"]
    assert (first, service["healthcheck"]["test"]) == ("valkey-server", ["CMD", "valkey-cli", "ping"])
    asked = ["redis-cli", "-p", str(port), "ping"]

    def answers() -> bool:
        return subprocess.run(asked, check=False, capture_output=True, text=True).stdout == "PONG\n"

    _run(["redis-server", "--port", str(port), "--bind", "127.0.0.1", *command], folder, answers)


def test_etcd(folder: Path) -> None:
    port, peer = free_port(), free_port()
    text = (
        "\n".join(SERVICES["etcd"]["command"]).replace("/etcd-data", f"{folder}/data").replace("0.0.0.0", "127.0.0.1")
    )
    command = text.replace(":2379", f":{port}").splitlines()
    assert f"--listen-client-urls=http://127.0.0.1:{port}" in command

    def answers() -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
            return b"true" in reply.read()
        return False

    url = f"http://127.0.0.1:{peer}"
    command += [f"--listen-peer-urls={url}", f"--initial-advertise-peer-urls={url}", f"--initial-cluster=one={url}"]
    _run(command, folder, answers)
