"""Secrets at rest: nothing in the database file opens without the key file."""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner

from ai.backend.common.artifacts import RegistryType
from ai.backend.common.errors import InvalidInput
from ai.backend.common.ids import RegistryId
from ai.backend.infra.bus import Bus
from ai.backend.infra.database import Database
from ai.backend.infra.http.client_tokens import Answer
from ai.backend.infra.rpc.memory import MemoryLink
from ai.backend.manager.artifacts.model import ArtifactRegistry
from ai.backend.manager.artifacts.sql import SqlArtifactStore
from ai.backend.manager.composition.backing_services import sealer_of, secrets_file
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.idempotency.store import AnswerStore
from ai.backend.manager.main import main
from ai.backend.manager.secrets.sealer import Sealer, new_key
from ai.backend.manager.sessions.tables import LIVE_SESSIONS
from tests.support.migrated import migrated

HUB = "config/docker/registry/hub"


def _stored(path: Path) -> list[str]:
    with sqlite3.connect(path) as db:
        return [row[0] for row in db.execute("SELECT secret_key FROM keypairs ORDER BY access_key")]


def _configured(path: Path) -> set[str]:
    """Every value of the shared configuration, as it lies there now or lay there before."""
    with sqlite3.connect(path) as db:
        found = db.execute("SELECT value FROM config_entries UNION SELECT value FROM config_changes")
        return {row[0] for row in found}


async def _start(path: Path, sealer: Sealer) -> tuple[Manager, Database]:
    database = Database(f"sqlite:///{path}")
    manager = Manager(ManagerSettings(), database, Bus(), MemoryLink().manager, sealer=sealer)
    try:
        await manager.migrate()
    except BaseException:
        await database.close()
        raise
    return manager, database


async def test_answers_with_secrets_open_for_whoever_has_the_key(tmp_path: Path) -> None:
    path, at, call = migrated(tmp_path / "manager.db"), datetime.now(UTC), "f" * 64
    since, secret = at - timedelta(hours=1), "-----BEGIN OPENSSH PRIVATE KEY-----"
    told = Answer(
        status=200, headers={"Content-Type": "application/json"}, body=f'{{"private_key":"{secret}ü"}}'.encode()
    )

    async def known(store: AnswerStore, token: str) -> Answer | None:
        found = await store.begin("AKIA", token, call, call_id=uuid4(), now=at, since=since)
        assert found is None or found.fingerprint == call
        return found.answer if found is not None else None

    async def keep(store: AnswerStore, token: str) -> None:
        assert await known(store, token) is None
        await store.finish("AKIA", token, told)

    key = new_key()
    plain, database = await _start(path, Sealer())
    await keep(plain.stores.answers, "before")
    await database.close()
    manager, database = await _start(path, Sealer([key]))
    await keep(manager.stores.answers, "t")
    await keep(manager.stores.answers, "moved")
    assert await known(manager.stores.answers, "t") == told
    assert await known(manager.stores.answers, "before") == told, "kept before there was a key"
    with sqlite3.connect(path) as db:
        stored = dict(db.execute("SELECT token, body FROM kept_answers"))
        assert [token for token, body in stored.items() if secret.encode() in body] == ["before"]
        assert [token for token, mark in db.execute("SELECT token, fingerprint FROM kept_answers") if mark == call] == [
            "before"
        ]
        db.execute("UPDATE kept_answers SET body = ? WHERE token = 'moved'", [stored["t"]])
    another = await manager.stores.answers.begin("AKIA", "t", "e" * 64, call_id=uuid4(), now=at, since=since)
    assert another is not None
    assert another.fingerprint not in (call, "e" * 64), "another call under the same token is told from the first"
    without = Answer(status=told.status, headers=told.headers, body=None)
    assert await known(manager.stores.answers, "moved") == without
    await database.close()
    rotated, database = await _start(path, Sealer([newer := new_key(), key]))
    assert await known(rotated.stores.answers, "t") == told
    await database.close()
    other, database = await _start(path, Sealer([newer]))
    found = await other.stores.answers.begin("AKIA", "t", call, call_id=uuid4(), now=at, since=since)
    assert found is not None
    assert (found.fingerprint == call, found.answer) == (False, without)
    await database.close()


async def test_keys_come_change_and_are_lost(tmp_path: Path) -> None:
    settings, path = ManagerSettings(data_dir=tmp_path), migrated(tmp_path / "manager.db")
    plain, database = await _start(path, Sealer())
    made = await plain.bootstrap.run()
    now = plain.loops.schedule.clock.now()
    registry = ArtifactRegistry(
        id=RegistryId(uuid4()),
        name="hub",
        type=RegistryType.HUGGINGFACE,
        url="https://hub.example.com",
        credentials={"token": "hf_secret"},
        created_at=now,
        modified_at=now,
    )
    store = SqlArtifactStore(database, LIVE_SESSIONS)
    await store.add_registry(registry)
    assert await store.registries() == [registry]
    await plain.stores.config.put_many({HUB: "https://cr.example.org", f"{HUB}/password": "cr_old"})
    await plain.stores.config.put_many({f"{HUB}/password": "cr_secret"})
    await database.close()
    assert "cr_old" in _configured(path)
    assert made.admin is not None
    assert made.admin.secret_key in _stored(path)

    async def opens(sealer: Sealer, expected: str) -> None:
        manager, database = await _start(path, sealer)
        credentials = await manager.services.identity.credentials(made.admin.access_key)  # type: ignore[union-attr]  # it is there
        assert credentials is not None
        assert credentials.secret_key == expected
        assert await SqlArtifactStore(database, LIVE_SESSIONS, sealer).registries() == [registry]
        images = manager.services.images
        assert images is not None
        assert (await images.registries.get("hub")).password == "cr_secret"
        assert not {"cr_old", "cr_secret"} & _configured(path), "nor what it was before"
        await database.close()

    secret = made.admin.secret_key
    await opens(sealer_of(settings), secret)
    sealed = _stored(path)
    assert all(text.startswith("gcm1:") for text in sealed), "the start of a manager seals what was plain"

    arguments = ["--config", str(tmp_path / "manager.toml"), "secrets"]
    (tmp_path / "manager.toml").write_text(f'data-dir = "{tmp_path}"\n')
    for command, keys in (("new-key", 2), ("seal", 2), ("drop-old-keys", 1)):
        done = await asyncio.to_thread(CliRunner().invoke, main, [*arguments, command])
        assert done.exit_code == 0, done.output
        assert len(secrets_file(settings).read_text().splitlines()) == 1 + keys
    assert not {*_stored(path)} & {*sealed}
    backup = await asyncio.to_thread(CliRunner().invoke, main, [*arguments[:2], "etcd", "get", f"{HUB}/password"])
    assert backup.output.startswith("gcm1:")
    for value in ("typed", backup.output.strip()):
        done = await asyncio.to_thread(
            CliRunner().invoke, main, [*arguments[:2], "etcd", "put", f"{HUB}/password", value]
        )
        assert done.exit_code == 0, done.output
        assert value != "typed" or "typed" not in _configured(path)
    with sqlite3.connect(path) as db:
        assert "hf_secret" not in db.execute("SELECT credentials FROM artifact_registries").fetchone()[0]
    await opens(sealer_of(settings), secret)

    secrets_file(settings).unlink()
    with pytest.raises(InvalidInput, match="reissue"):
        await _start(path, sealer_of(settings))
    done = await asyncio.to_thread(CliRunner().invoke, main, [*arguments, "reissue"])
    assert done.exit_code == 0, done.output
    told = dict(line.split("=") for line in done.output.splitlines() if line.startswith("BACKEND_"))
    assert told["BACKEND_SECRET_KEY"] not in (secret, "")
    manager, database = await _start(path, sealer_of(settings))
    credentials = await manager.services.identity.credentials(told["BACKEND_ACCESS_KEY"])
    assert credentials is not None
    assert credentials.secret_key == told["BACKEND_SECRET_KEY"]
    assert manager.services.images is not None
    assert (await manager.services.images.registries.get("hub")).password == ""
    await database.close()
