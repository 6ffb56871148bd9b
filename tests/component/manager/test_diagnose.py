"""The support bundle: what it has, and that none of the secrets that were planted everywhere is in it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from ai.backend.manager.commands.diagnose import Cleaner
from ai.backend.manager.main import main

PLANTED = {
    "settings": "planted-in-settings-4711",
    "url": "planted-in-a-url",
    "variable": "planted-in-a-variable",
    "configuration": "planted-in-the-configuration",
    "log": "planted-in-a-log",
}
LOG = f"""{{"msg": "password={PLANTED["log"]} and Authorization: Bearer {PLANTED["log"]}"}}
{{"msg": "the token {PLANTED["settings"]} was used; {PLANTED["configuration"]} too; sessions go on"}}
-----BEGIN EC PRIVATE KEY-----
{PLANTED["log"]}
-----END EC PRIVATE KEY-----
"""


def run(config: Path, *words: str) -> str:
    result = CliRunner().invoke(main, ["--config", str(config), *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_no_planted_secret_is_in_the_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, logs = tmp_path / "manager.toml", tmp_path / "logs"
    logs.mkdir()
    (logs / "manager.log").write_text(LOG)
    (logs / "passwd.log").symlink_to("/etc/passwd")
    config.write_text(
        f'data-dir = "{tmp_path}/data"\n[metrics]\ntargets-token = "{PLANTED["settings"]}"\n'
        f'[redis]\naddr = "127.0.0.1:1"\npassword = "{PLANTED["url"]}"\n'
        f'[otel]\nheaders = {{Authorization = "{PLANTED["settings"]}"}}\n'
        f'[logging]\ndrivers = ["file"]\n[logging.file]\npath = "{logs}"\n'
    )
    monkeypatch.setenv("BACKEND_PLANTED", PLANTED["variable"])
    run(config, "schema", "oneshot")
    run(config, "etcd", "put", "volumes/proxies/x/secret", PLANTED["configuration"])
    output = tmp_path / "bundle.tar.gz"
    said = run(config, "diagnose", str(output))
    assert "settings.json" in said
    assert output.stat().st_mode & 0o077 == 0
    with tarfile.open(output) as bundle:
        texts = {
            Path(member.name).name: file.read().decode()
            for member in bundle
            if (file := bundle.extractfile(member)) is not None
        }
    for place, secret in PLANTED.items():
        assert [name for name, text in texts.items() if secret in text] == [], place
    assert "passwd.log" not in texts
    assert "sessions go on" in texts["manager.log"]
    assert "BACKEND_PLANTED" in texts["machine.json"]
    assert json.loads(texts["database.json"])["rows"]["sessions"] == 0
    assert "volumes/proxies/x/secret" in texts["configuration.json"]
    again = CliRunner().invoke(main, ["--config", str(config), "diagnose", str(output)])
    assert again.exit_code == 1
    assert "is there already" in again.output


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("postgresql://me:hunter2@db/backend", "postgresql://me:**removed**@db/backend"),
        ('"secret_key": "hunter2",', '"secret_key": "**removed**",'),
        ("X-Auth-Token: hunter2\n", "X-Auth-Token: **removed**\n"),
        ("tokens are counted", "tokens are counted"),
        ("eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.c2ln", "**removed**"),
    ],
)
def test_what_looks_like_a_secret_is_removed(text: str, kept: str) -> None:
    assert Cleaner(()).clean(text) == kept
