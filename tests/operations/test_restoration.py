"""The drill of docs/howto/back-up.md: all but agents and folders is destroyed, and comes back from a backup."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ai.backend.client.config import APIConfig
from ai.backend.client.exceptions import BackendError
from ai.backend.client.session import Session
from tests.support import audit
from tests.support.client_runs import run_to_end
from tests.support.cluster import wait_until
from tests.support.deployment import Deployment
from tests.support.postgres import PostgresServer, migrated_template, program, shared_server

pytestmark = [pytest.mark.needs("postgres", "redis", "etcd"), pytest.mark.timeout(300)]
SMALL = {"cpu": 1, "mem": "64m"}
PASSPHRASE = "a passphrase of the drill"


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as servers:
        Path(servers).chmod(0o755)
        deployment = Deployment(tmp_path / "site", Path(servers))
        try:
            deployment.start_servers()
            yield deployment
        finally:
            deployment.stop()


def _session(user: dict[str, str]) -> Session:
    return Session(
        config=APIConfig(
            endpoint=user["BACKEND_ENDPOINT"],
            access_key=user["BACKEND_ACCESS_KEY"],
            secret_key=user["BACKEND_SECRET_KEY"],
        )
    )


def _status(deployment: Deployment, name: str) -> str:
    rows = deployment.query(f"SELECT status FROM sessions WHERE name = '{name}' ORDER BY created_at DESC LIMIT 1")
    return str(rows[0]["status"]) if rows else "unknown"


def _destroy_all_but_agents_and_folders(deployment: Deployment) -> None:
    """Ends the managers, the servers and whatever they and the administrator kept."""
    deployment.kill("manager")
    for server in (deployment.postgres, deployment.redis, deployment.etcd):
        server.kill()
        shutil.rmtree(server.folder)
    shutil.rmtree(deployment.root / "var/manager")
    for place in (deployment.root / "etc").iterdir():
        if not place.name.startswith(("agent.", "storage-proxy.")):
            shutil.rmtree(place) if place.is_dir() else place.unlink()


def test_the_drill(deployment: Deployment) -> None:
    users = deployment.set_up()
    for name in ("storage-proxy", "manager", "agent"):
        deployment.start_one(name)
    deployment.wait_alive()
    backup = deployment.root.parent / "backup"
    passphrase = deployment.root.parent / "passphrase"
    passphrase.write_text(f"{PASSPHRASE}\n")
    passphrase.chmod(0o600)
    with _session(users["user"]) as session:
        session.VFolder.create("data", host="storage-1:local")
        for name in ("stays", "ends"):
            session.ComputeSession.get_or_create("python", name=name, resources=SMALL)
        said = deployment.mgr("backup", str(backup), "--passphrase-file", str(passphrase))
        assert "values of the shared configuration" in said
        session.VFolder.create("newer", host="storage-1:local")
        session.ComputeSession("ends").destroy()
        wait_until(lambda: _status(deployment, "ends") == "TERMINATED", what="the end of a session")
        session.ComputeSession.get_or_create("python", name="newer", resources=SMALL)
        session.ComputeSession("stays").restart()  # the agent has a later attempt than the backup
        wait_until(lambda: _status(deployment, "stays") == "RUNNING", what="a restarted session")
        assert run_to_end(session, "stays", "kept = 42") == ""
    newer_kernel = str(
        deployment.query("SELECT k.id FROM kernels k JOIN sessions s ON s.id = k.session_id WHERE s.name = 'newer'")[0][
            "id"
        ]
    )
    folders = sorted((deployment.root / "srv/local").rglob("*"))

    _destroy_all_but_agents_and_folders(deployment)
    assert deployment.daemons["agent"].poll() is None

    deployment.start_servers()
    options = [str(backup), "--passphrase-file", str(passphrase)]
    settings = deployment.root / "etc/manager.toml"
    settings.write_text(deployment.command("mgr", "restore", *options, "--print-settings"))
    started = time.monotonic()
    said = deployment.mgr("restore", *options)
    print(f"restored in {time.monotonic() - started:.1f} s: {said}")
    assert "Start the managers" in said
    with pytest.raises(AssertionError, match=r"has other keys|has .* tables"):
        deployment.mgr("restore", *options)
    deployment.start_one("manager")
    deployment.wait_alive()

    with _session(users["user"]) as session:  # with the keys of before
        wait_until(lambda: _said(session, "stays", "print(kept)") == "42\n", what=f"its state\n{deployment.log()}")
        wait_until(lambda: _status(deployment, "ends") in ("ERROR", "TERMINATED"), timeout_s=60, what="the lost one")
        wait_until(lambda: not audit.processes(newer_kernel), what="the end of what is newer")
        assert _status(deployment, "newer") == "unknown"
        assert [folder["name"] for folder in session.VFolder.list()] == ["data"]
        assert sorted((deployment.root / "srv/local").rglob("*")) == folders
        session.ComputeSession.get_or_create("python", name="next", resources=SMALL)
        assert run_to_end(session, "next", "print(6 * 7)") == "42\n"
        for name in ("stays", "next"):
            session.ComputeSession(name).destroy()
    wait_until(
        lambda: deployment.query("SELECT occupied_slots FROM agents")[0]["occupied_slots"] == "{}",
        what="free slots",
    )


def _said(session: Session, name: str, code: str) -> str:
    try:
        return run_to_end(session, name, code)
    except (BackendError, OSError):
        return ""


class ArchivingServer(PostgresServer):
    """Copies its log to an archive, as docs/howto/back-up.md sets it up."""

    def __init__(self, folder: Path, archive: Path, **options: Any) -> None:
        super().__init__(folder, durable=True, **options)
        self._options |= {
            "wal_level": "replica",
            "archive_mode": "on",
            "archive_command": f"cp %p {archive}/.%f && mv {archive}/.%f {archive}/%f",
            "restore_command": f"cp {archive}/%f %p",
        }


def _as_server(*command: str) -> None:
    owner: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    subprocess.run(command, check=True, capture_output=True, cwd="/", **owner)


def test_a_point_in_time() -> None:
    """A database comes back as it was between two backups."""
    with tempfile.TemporaryDirectory(prefix="pitr-", ignore_cleanup_errors=True) as text:
        folder = Path(text)
        folder.chmod(0o777)
        archive = folder / "archive"
        archive.mkdir()
        archive.chmod(0o777)
        server = ArchivingServer(folder / "pg", archive)
        server.make()
        server.start()
        database = server.create(name="backend")
        base_backup, dump = program("pg_basebackup"), program("pg_dump")
        assert base_backup is not None
        assert dump is not None
        schema = subprocess.run(
            [dump, "-d", shared_server().url(migrated_template())], check=True, capture_output=True, text=True
        ).stdout
        psql = program("psql")
        assert psql is not None
        subprocess.run(
            [psql, "-q", "-d", server.url(database)], input=schema, text=True, check=True, capture_output=True
        )
        place = ["-h", str(server.folder), "-U", "postgres"]
        _as_server(base_backup, "-D", str(folder / "base"), *place, "--checkpoint=fast")
        server.sql(database, "INSERT INTO agent_acks VALUES ('before', 1, 1)")
        server.sql(database, "CREATE TABLE moment AS SELECT now() AS at")
        moment = _scalar(server.url(database), "SELECT at::text FROM moment")
        time.sleep(0.1)
        server.sql(database, "INSERT INTO agent_acks VALUES ('after', 1, 1)")
        segment = _scalar(server.url(database), "SELECT pg_walfile_name(pg_switch_wal())")
        wait_until((archive / segment).is_file, what="the archive")
        server.stop()
        shutil.rmtree(folder / "pg")

        restored = ArchivingServer(folder / "again", archive)
        restored.folder.mkdir()
        (folder / "base").rename(restored.folder / "data")
        if os.geteuid() == 0:
            os.chown(restored.folder, 65534, 65534)
        (restored.folder / "data/recovery.signal").touch()
        restored._options |= {"recovery_target_time": moment, "recovery_target_action": "promote"}
        restored.start()
        try:
            agents = _scalar(restored.url("backend"), "SELECT string_agg(agent_id, ' ') FROM agent_acks")
            assert agents == "before"
        finally:
            restored.stop()


def _scalar(url: str, query: str) -> str:
    import asyncpg

    async def work() -> str:
        connection = await asyncpg.connect(url)
        try:
            return str(await connection.fetchval(query))
        finally:
            await connection.close()

    return asyncio.run(work())
