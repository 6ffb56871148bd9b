"""A cluster of an earlier version becomes one of this version in the order of docs/howto/upgrade.md, under load."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ai.backend.manager.db import SCHEMA_HEAD
from tests.support.client_runs import run_to_end
from tests.support.cluster import wait_until
from tests.support.deployment import FILES, Deployment
from tests.support.earlier import install_earlier
from tests.support.load import Load, session_of

pytestmark = [pytest.mark.needs("postgres", "redis", "etcd"), pytest.mark.timeout(600)]
SMALL = {"cpu": 1, "mem": "64m"}
WRITE = "print('ab', end='', file=open('/home/work/data/file', 'a'))"
READ = "print(open('/home/work/data/file').read())"


class UpgradedDeployment(Deployment):
    """Daemons of the earlier version, until ``upgrade`` replaces them one by one."""

    def __init__(self, folder: Path, servers: Path, earlier: Path) -> None:
        super().__init__(folder, servers)
        self._earlier = earlier
        self._is_upgraded: set[str] = set()

    def _earlier_environment(self) -> dict[str, str]:
        return {name: value for name, value in self.environment().items() if name != "PYTHONPATH"}

    def command(self, *words: str) -> str:
        if "manager" in self._is_upgraded:
            return super().command(*words)
        program = self._earlier.with_name("backend.ai")
        done = subprocess.run(
            [program, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=self._earlier_environment(),
            cwd=self.root,
        )
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start_one(self, name: str, *, env: Mapping[str, str] | None = None) -> None:
        if name.rstrip("2") in self._is_upgraded:
            super().start_one(name, env=env)
            return
        unit = (FILES / "systemd" / f"backendai-{name.rstrip('2')}.service").read_text()
        line = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
        _, *words = shlex.split(line.removeprefix("ExecStart="))
        words = [self.here(word) for word in words]
        with (self.root / f"{name}.log").open("ab") as output:
            self.daemons[name] = subprocess.Popen(  # type: ignore[assignment]  # of the same methods
                [str(self._earlier), *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**self._earlier_environment(), **(env or {})},
                cwd=self.root,
                start_new_session=True,
            )

    def upgrade(self, name: str) -> None:
        """Stops a daemon as its unit does, and starts this version in its place."""
        process = self.daemons.pop(name)
        process.terminate()
        assert process.wait(60) is not None
        self._is_upgraded.add(name)
        self.start_one(name)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the earlier version."""
    return install_earlier(tmp_path_factory.mktemp("earlier"))


@pytest.fixture
def deployment(earlier: Path, tmp_path: Path) -> Iterator[UpgradedDeployment]:
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as servers:
        Path(servers).chmod(0o755)
        deployment = UpgradedDeployment(tmp_path / "site", Path(servers), earlier)
        try:
            deployment.start_servers()
            yield deployment
        finally:
            deployment.stop()


def _registered(deployment: Deployment, epoch: int) -> bool:
    rows = deployment.query("SELECT status, epoch FROM agents")
    return any(row["status"] == "ALIVE" and row["epoch"] > epoch for row in rows)


def test_daemon_by_daemon_with_sessions_that_run(deployment: UpgradedDeployment) -> None:
    users = deployment.set_up()
    for name in ("storage-proxy", "manager", "agent"):
        deployment.start_one(name)
    deployment.wait_alive()
    assert deployment.query("SELECT version_num FROM alembic_version") == [{"version_num": "0001"}]
    with session_of(users["user"]) as session:
        session.VFolder.create("data", host="storage-1:local")
        session.ComputeSession.get_or_create("python", name="stays", resources=SMALL, mounts=["data"])
        assert run_to_end(session, "stays", f"kept, count = 42, 0; {WRITE}") == ""
        session.ComputeSession.get_or_create("python", name="ended", resources=SMALL)
        session.ComputeSession("ended").destroy()

    with Load(users["user"]) as load:
        load.go_on()
        deployment.upgrade("manager")
        load.go_on()
        assert deployment.query("SELECT version_num FROM alembic_version") == [{"version_num": SCHEMA_HEAD}]
        deployment.upgrade("storage-proxy")
        load.go_on()
        (agent,) = deployment.query("SELECT epoch FROM agents")
        deployment.upgrade("agent")
        wait_until(lambda: _registered(deployment, agent["epoch"]), timeout_s=60, what=f"agent\n{deployment.log()}")
        load.go_on()
    print(f"{load.answers} requests, the longest interruption took {load.longest_s:.1f} s")
    assert load.refusals == []

    with session_of(users["user"]) as session:
        assert run_to_end(session, "stays", f"print(kept, count > 5); {WRITE}; {READ}") == "42 True\nabab\n"
        session.ComputeSession.get_or_create("python", name="newer", resources=SMALL)
        assert run_to_end(session, "newer", "print(6 * 7)") == "42\n"
        session.VFolder.create("after", host="storage-1:local")
        assert sorted(folder["name"] for folder in session.VFolder.list()) == ["after", "data"]
        for name in ("stays", "newer"):
            session.ComputeSession(name).destroy()
    statuses = {row["name"]: row["status"] for row in deployment.query("SELECT name, status FROM sessions")}
    assert statuses["ended"] == "TERMINATED"
    wait_until(
        lambda: deployment.query("SELECT occupied_slots FROM agents")[0]["occupied_slots"] == "{}", what="free slots"
    )


def test_the_way_back(deployment: UpgradedDeployment) -> None:
    """The earlier program refuses the newer database, and leaves it as it is."""
    deployment.set_up()
    assert "at 0001" in deployment.mgr("schema", "show")
    deployment._is_upgraded.add("manager")
    assert SCHEMA_HEAD in deployment.mgr("schema", "upgrade")
    deployment._is_upgraded.clear()
    with pytest.raises(AssertionError, match="newer"):
        deployment.mgr("schema", "upgrade")
    deployment.start_one("manager")
    assert deployment.daemons.pop("manager").wait(60) != 0
    assert "newer version than this program" in (deployment.root / "manager.log").read_text()
