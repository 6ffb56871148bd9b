"""`backend.ai mgr ...` on an embedded database."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ai.backend.manager.main import main
from tests.support import audit
from tests.support.migrated import migrated

Mgr = Callable[..., Result]


@pytest.fixture
def mgr(tmp_path: Path) -> Mgr:
    (tmp_path / "manager.toml").write_text(f'data-dir = "{tmp_path}"\n')

    def run(*words: str) -> Result:
        return CliRunner().invoke(main, ["--config", str(tmp_path / "manager.toml"), *words])

    return run


def _good(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.output


def test_a_database_that_is_not_there_is_not_made(mgr: Mgr, tmp_path: Path) -> None:
    for words in (["schema", "show"], ["etcd", "get", "a"], ["clear-history"], ["dbshell"], ["schema", "upgrade"]):
        result = mgr(*words)
        assert result.exit_code == 1
        assert "is no database of a manager" in result.output
        assert not (tmp_path / "manager.db").exists()
    assert "the database is at" in _good(mgr("schema", "oneshot"))
    assert "this program at" in _good(mgr("schema", "show"))


def test_a_backup_of_the_configuration_can_be_put_back(mgr: Mgr, tmp_path: Path) -> None:
    migrated(tmp_path / "manager.db")
    _good(mgr("etcd", "put", "config/redis/addr", "h:1"))
    _good(mgr("etcd", "put", "config/redis", "both"))
    _good(mgr("etcd", "put", "a/b", "node", "--scope", "node:i-1"))
    backup = _good(mgr("etcd", "get", "--prefix", ""))
    assert json.loads(backup) == {"config": {"redis": {"": "both", "addr": "h:1"}}}
    (tmp_path / "backup.json").write_text(backup)
    _good(mgr("etcd", "delete", "--prefix", ""))
    assert mgr("etcd", "get", "config/redis/addr").exit_code == 1
    _good(mgr("etcd", "put-json", "", str(tmp_path / "backup.json")))
    _good(mgr("etcd", "move-subtree", "config", "moved/to"))
    assert _good(mgr("etcd", "get", "moved/to/redis/addr")) == "h:1\n"
    assert _good(mgr("etcd", "get", "a/b", "--scope", "node:i-1")) == "node\n"
    assert mgr("etcd", "move-subtree", "moved", "moved/to").exit_code == 1
    assert mgr("etcd", "put", "a//b", "x").exit_code == 1
    assert mgr("etcd", "get", "a", "--scope", "planet").exit_code == 2


FIXTURE: dict[str, Any] = {
    "domains": [{"name": "lab", "is_active": True, "total_resource_slots": {}, "unknown": 1}],
    "keypair_resource_policies": [
        {"name": "p", "default_for_unspecified": "UNLIMITED", "total_resource_slots": {"cpu": "8"}, "idle_timeout": 60}
    ],
    "users": [
        {
            "uuid": "f38dea23-50fa-42a0-b5ae-338f5f4693f4",
            "username": "ann",
            "email": "ann@lab",
            "password": "secret-word",
            "domain_name": "lab",
            "role": "superadmin",
        }
    ],
    "keypairs": [
        {
            "user_id": "ann@lab",
            "access_key": "AKIAIOSFODNN7EXAMPLE",
            "secret_key": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "is_active": True,
            "is_admin": True,
            "resource_policy": "p",
            "rate_limit": 30000,
            "user": "f38dea23-50fa-42a0-b5ae-338f5f4693f4",
        }
    ],
}


def test_fixtures_are_rows_and_secrets_are_not_plain(mgr: Mgr, tmp_path: Path) -> None:
    database = migrated(tmp_path / "manager.db")
    file = tmp_path / "rows.json"
    file.write_text(json.dumps(FIXTURE))
    assert "users: 1 new, 0 changed" in _good(mgr("fixture", "populate", str(file)))
    assert "users: 0 new, 0 changed" in _good(mgr("fixture", "populate", str(file)))
    changed = {"__mode": "update", "users": [{**FIXTURE["users"][0], "main_access_key": "AKIAIOSFODNN7EXAMPLE"}]}
    file.write_text(json.dumps(changed))
    assert "users: 0 new, 1 changed" in _good(mgr("fixture", "populate", str(file)))
    user = audit.rows(database, "SELECT * FROM users")[0]
    assert user["main_access_key"] == "AKIAIOSFODNN7EXAMPLE"
    assert str(user["password"]).startswith("$argon2id$")
    assert "wJalr" not in str(audit.rows(database, "SELECT secret_key FROM keypairs"))
    wrong: list[Any] = [{"users": [{"uuid": "x"}]}, {"nothing": [{}]}, {"users": ["x"]}, {"users": [{}]}, [1]]
    for bad in wrong:
        file.write_text(json.dumps(bad))
        result = mgr("fixture", "populate", str(file))
        assert (result.exit_code, result.exception.__class__) == (1, SystemExit), result.output


EXAMPLES = Path(__file__).parents[3] / "deploy" / "fixtures"


def test_the_example_fixtures_make_an_installation(mgr: Mgr, tmp_path: Path) -> None:
    """In the order of the guide (03-02, "Populate the database with initial fixtures"), with values of one's own."""
    database = migrated(tmp_path / "manager.db")
    for name in ("users", "keypairs", "resource-presets", "set-user-main-access-keys"):
        content = (EXAMPLES / f"{name}.json").read_text()
        file = tmp_path / f"{name}.json"
        file.write_text(content)
        if "change-me" in content:
            assert "put values of your own" in mgr("fixture", "populate", str(file)).output
        file.write_text(content.replace("change-me-admin", "AKADMIN").replace("change-me", "AKUSER"))
        _good(mgr("fixture", "populate", str(file)))
    keys = audit.rows(database, "SELECT email, main_access_key, is_admin FROM users JOIN keypairs ON user_id = uuid")
    assert [tuple(row.values()) for row in keys] == [
        ("admin@example.org", "AKADMIN", 1),
        ("user@example.org", "AKUSER-user", 0),
    ]


def test_a_file_is_checked_although_the_manager_s_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "manager.toml").write_text("[manager]\nnum-proc = 0\nuse_sokovan = false\n")
    result = CliRunner().invoke(main, ["config", "check", "manager.toml"])
    assert result.exit_code == 1
    assert "manager.num-proc" in result.output
    assert "manager.use_sokovan" in result.output


def test_the_guide_s_spelling_of_missing_revisions(mgr: Mgr, tmp_path: Path) -> None:
    migrated(tmp_path / "manager.db")
    assert "the database is at" in _good(mgr("schema", "apply-mission-revisions", "22.09.6"))


def test_keys_and_documents(mgr: Mgr, tmp_path: Path) -> None:
    said = _good(mgr("generate-rpc-keypair", str(tmp_path / "keys"), "manager"))
    public = (tmp_path / "keys/manager.key").read_text().strip()
    assert public in said
    assert (tmp_path / "keys/manager.key_secret").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "keys/manager.key_secret").read_text().split()[0] == public
    assert mgr("generate-rpc-keypair", str(tmp_path / "keys"), "manager").exit_code == 1
    schema = _good(mgr("api", "dump-gql-schema"))
    assert _good(mgr("api", "dump-graphql-schema")) == schema
    manual = [
        "rescan_images",
        "preload_image",
        "unload_image",
        "forget_image",
        "alias_image",
        "dealias_image",
        "create_user",
    ]
    assert all(f"  {mutation}(" in schema for mutation in manual), "spec 03-09:990"
    assert json.loads(_good(mgr("schema", "dump-history")))["revisions"][0]["down_revision"] is None
    migrated(tmp_path / "manager.db")
    assert "0 sessions were removed" in _good(mgr("clear-history", "-r", "30d", "--vacuum-full"))
    assert mgr("clear-history", "-r", "soon").exit_code == 2
    assert "0 sessions were removed" in _good(mgr("clear-history", "-r", "30d", "--archive", str(tmp_path / "archive")))
