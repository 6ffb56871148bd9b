"""The set-up of ``deploy/``: its own files with other places and ports, on real servers."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.cluster import free_port, wait_until
from tests.support.etcd_server import EtcdServer
from tests.support.forked import ForkedPopen
from tests.support.postgres import PostgresServer
from tests.support.redis_server import RedisServer

FILES = Path(__file__).parents[2] / "deploy"
AGENT = "i-node-1"
_PORTS = (8100, 8110, 8120, 8081, 6011, 6009, 6021, 6022)


class Deployment:
    """Managers, an agent and a storage proxy, each as its unit starts it, over PostgreSQL, Redis and etcd.

    ``kill`` and ``start_one`` take the names of units; ``manager2`` is a second manager, of two processes.
    """

    def __init__(self, folder: Path, servers: Path) -> None:
        self.root = folder
        self.ports = {port: free_port() for port in _PORTS}
        self.places = {"/etc/backend.ai": "etc", "/var/lib/backend.ai": "var", "/srv/backend.ai": "srv"}
        for place in self.places.values():
            (folder / place).mkdir(parents=True, exist_ok=True)
        self.postgres = PostgresServer(servers / "pg", port=self.ports[8100])
        self.redis = RedisServer(servers / "redis", port=self.ports[8110])
        self.etcd = EtcdServer(servers / "etcd", port=self.ports[8120])
        self.daemons: dict[str, ForkedPopen] = {}
        for file in sorted((FILES / "config").iterdir()):
            (folder / "etc" / file.name).write_text(self.here(file.read_text()))
        self.add_manager(2, processes=2)

    def here(self, text: str) -> str:
        for place, folder in self.places.items():
            text = text.replace(place, str(self.root / folder))
        for port, own in self.ports.items():
            text = re.sub(rf"(port = |127\.0\.0\.1:){port}\b", rf"\g<1>{own}", text)
        return text

    def add_manager(self, number: int, *, processes: int = 1) -> None:
        """Writes the settings of ``managerNUMBER``; its ports are those of the first one in ``ports`` and 10,000 more
        for the second, 20,000 for the third."""
        text = (self.root / "etc/manager.toml").read_text()
        for port in (8081, 6011):
            own = self.ports[port + (number - 1) * 10_000] = free_port(then=1)
            text = text.replace(str(self.ports[port]), str(own))
        pid_file = f'pid-file = "{self.root}/manager{number}.pid"\n'
        text = text.replace("num-proc = 1\n", f"num-proc = {processes}\n{pid_file}")
        (self.root / f"etc/manager{number}.toml").write_text(text.replace("/var/manager", f"/var/manager{number}"))

    def add_agent(self, number: int) -> None:
        """Writes the settings and keys of ``agentNUMBER``, whose node is i-node-NUMBER, and has managers take it."""
        etc = self.root / "etc"
        text = (etc / "agent.toml").read_text().replace(AGENT, f"i-node-{number}")
        text = text.replace("/var/agent", f"/var/agent{number}").replace("/agent.key", f"/agent{number}.key")
        (etc / f"agent{number}.toml").write_text(text)
        self.mgr("generate-rpc-keypair", str(etc), f"agent{number}")
        self.mgr("allow-agent", f"i-node-{number}", (etc / f"agent{number}.key").read_text().strip())

    # ---- commands ----

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("BACKEND")}
        return {**kept, "HOME": str(self.root), "NO_COLOR": "1", **(more or {})}

    def command(self, *words: str) -> str:
        """What ``backend.ai WORDS`` prints; fails if it fails."""
        with ForkedPopen(
            [sys.executable, "-m", "ai.backend.cli.main", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(),
            cwd=self.root,
        ) as process:
            out, err = process.communicate(timeout=120)
        assert process.returncode == 0, f"{shlex.join(words)}\n{out}\n{err}"
        return str(out)

    def mgr(self, *words: str) -> str:
        return self.command("mgr", "--config", str(self.root / "etc/manager.toml"), *words)

    # ---- servers and daemons ----

    def start_servers(self) -> None:
        self.postgres.make()
        for server in (self.postgres, self.redis, self.etcd):
            server.start()
        self.postgres.sql("postgres", "CREATE ROLE backendai LOGIN PASSWORD 'change-me'")
        self.postgres.sql("postgres", "CREATE DATABASE backend OWNER backendai TEMPLATE template0")

    def set_up(self) -> dict[str, dict[str, str]]:
        """The commands of docs/howto/run-a-cluster.md; returns the environment of the user and of the admin."""
        etc = self.root / "etc"
        self.mgr("generate-rpc-keypair", str(etc), "manager")
        self.mgr("generate-rpc-keypair", str(etc), "agent")
        self.mgr("schema", "oneshot")
        self.mgr("etcd", "put-json", "volumes", str(etc / "volumes.json"))
        self.mgr("allow-agent", AGENT, (etc / "agent.key").read_text().strip())
        said: dict[str, dict[str, str]] = {}
        who = ""
        for line in self.mgr("bootstrap", "--vfolder-host", "storage-1:local").splitlines():
            if line.startswith("# "):
                who = line[2:]
                said[who] = {"BACKEND_ENDPOINT": f"http://127.0.0.1:{self.ports[8081]}"}
            elif "=" in line:
                name, _, value = line.partition("=")
                said[who][name] = value
        return said

    def words_of(self, name: str) -> list[str]:
        """Returns the interpreter's arguments in a daemon's unit; a further daemon has the number of its settings."""
        kind = name.rstrip("23456789")
        unit = (FILES / "systemd" / f"backendai-{kind}.service").read_text()
        line = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
        _, *words = shlex.split(line.removeprefix("ExecStart="))
        return [self.here(word).replace(f"{kind}.toml", f"{name}.toml") for word in words]

    def start_one(self, name: str, *, env: Mapping[str, str] | None = None) -> None:
        words = self.words_of(name)
        with (self.root / f"{name}.log").open("ab") as output:
            self.daemons[name] = ForkedPopen(
                [sys.executable, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment(env),
                cwd=self.root,
                start_new_session=True,
            )

    def workers(self, name: str) -> list[int]:
        """The further processes of a manager."""
        pid = self.daemons[name].pid
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def kill(self, name: str) -> None:
        process = self.daemons.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for process in self.daemons.values():
            if process.poll() is None:
                process.terminate()
        for process in self.daemons.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for server in (self.postgres, self.redis, self.etcd):
            server.stop()

    def log(self) -> str:
        return "\n".join(
            f"--- {p.name}\n{p.read_text(errors='replace')[-3000:]}" for p in sorted(self.root.glob("*.log"))
        )

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Rows of the database, asked without the product."""
        import asyncio

        import asyncpg

        async def work() -> list[dict[str, Any]]:
            connection = await asyncpg.connect(self.postgres.url("backend"))
            try:
                return [dict(row) for row in await connection.fetch(sql)]
            finally:
                await connection.close()

        return asyncio.run(work())

    def is_ready(self, number: int = 1) -> bool:
        """Returns True if the manager of this number answers that it is ready."""
        url = f"http://127.0.0.1:{self.ports[8081 + (number - 1) * 10_000]}/readyz"
        with suppress(OSError), urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
        return False

    def wait_alive(self) -> None:
        """Until the agent is registered and somebody leads."""
        try:
            wait_until(
                lambda: (
                    self.query("SELECT 1 FROM agents WHERE status = 'ALIVE'")
                    and self.query("SELECT 1 FROM leases WHERE name = 'leader' AND holder <> '' AND expires_at > now()")
                ),
                timeout_s=60,
                what="an agent that is alive",
            )
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.log()}") from None
