"""The support bundle: what it has, and that none of the secrets that were planted everywhere is in it."""

from __future__ import annotations

import base64
import errno
import json
import tarfile
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from click.testing import CliRunner

from ai.backend.infra.redaction import Cleaner, secrets_in
from ai.backend.manager.commands import diagnose
from ai.backend.manager.commands.diagnose import write_bundle
from ai.backend.manager.config.settings import ManagerSettings
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
        ("dsn https://4711abc@sentry.example.com/7", "dsn https://**removed**@sentry.example.com/7"),
        ("tokens are counted", "tokens are counted"),
        ("redis://me:hun@ter/2@cache/0", "redis://me:**removed**@cache/0"),
        ("c2VjcmV0\n-----END PRIVATE KEY-----\nafter", "**removed**\nafter"),
        ("eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.c2ln", "**removed**"),
    ],
)
def test_what_looks_like_a_secret_is_removed(text: str, kept: str) -> None:
    assert Cleaner(()).clean(text) == kept


@pytest.mark.parametrize("secret", ['quo"ted-secret', "sécret-words", "with space/and=more", "back\\slash-secret"])
def test_a_known_secret_goes_in_whatever_form_it_was_written(secret: str) -> None:
    forms = [
        secret,
        json.dumps({"msg": secret}),
        json.dumps({"msg": secret}, ensure_ascii=False),
        f"refused {secret!r}",
        f"https://host/?word={quote(secret, safe='')}&other={quote_plus(secret)}",
        base64.b64encode(secret.encode()).decode(),
    ]
    for form in forms:
        cleaned = Cleaner([secret]).clean(form, has_values=False)
        assert "**removed**" in cleaned, form
        assert secret[:5] not in cleaned, form


def test_the_password_in_the_url_of_the_database_is_known(tmp_path: Path) -> None:
    settings = ManagerSettings.model_validate({"database": {"url": "postgresql://me:hunter%2F22@db/backend"}})
    assert {"hunter%2F22", "hunter/22"} <= set(secrets_in(settings))


def _bundle(settings: ManagerSettings, output: Path) -> dict[str, str]:
    write_bundle(settings, output)
    with tarfile.open(output) as bundle:
        return {Path(m.name).name: file.read().decode() for m in bundle if (file := bundle.extractfile(m)) is not None}


def _settings(tmp_path: Path) -> ManagerSettings:
    (tmp_path / "logs").mkdir()
    logging = {"drivers": ["file"], "file": {"path": str(tmp_path / "logs")}}
    return ManagerSettings.model_validate({"data-dir": str(tmp_path / "data"), "logging": logging})


def test_a_log_begins_with_a_whole_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a line may be the half of a secret that no pattern knows."""
    monkeypatch.setattr(diagnose, "_MAX_LOG_BYTES", 40)
    settings = _settings(tmp_path)
    (tmp_path / "logs/manager.log").write_text("password=0123456789abcdef0123456789\nthe last line\n")
    assert _bundle(settings, tmp_path / "bundle")["manager.log"] == "the last line\n"


def test_a_log_that_becomes_a_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = _settings(tmp_path)
    log = tmp_path / "logs/manager.log"
    log.write_text("ours")
    (tmp_path / "others").write_text("theirs")
    parts = diagnose._log_sections(settings)
    log.unlink()
    log.symlink_to(tmp_path / "others")
    monkeypatch.setattr(diagnose, "_log_sections", lambda _: parts)
    assert "theirs" not in _bundle(settings, tmp_path / "bundle")["manager.log"]


def test_a_bundle_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    settings = _settings(tmp_path)
    monkeypatch.setattr(tarfile.TarFile, "addfile", fill)
    with pytest.raises(OSError, match="No space"):
        write_bundle(settings, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
