"""`backend.ai totp`, `sign-ins`, `keypair rotate` and what administrators do for accounts, against a real manager."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import pyotp
import pytest
from click.testing import CliRunner

from ai.backend.cli.framework import proofs
from ai.backend.cli.main import root
from ai.backend.manager.access.permissions import Operation
from tests.component.manager.api.conftest import Api
from tests.component.manager.api.shell import Shell
from tests.component.manager.api.test_passwords_api import authorize
from tests.component.manager.api.test_people_api import PASSWORD, signs
from tests.component.manager.api.test_proofs_api import demand, superadmin

OTHER = "other@local"


async def test_one_time_passwords_by_command(api: Api, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await shell.own("totp", "status", by=api.other))["totp_activated"] is False
    keys: list[str] = []

    def typed(text: str, **_: object) -> str:
        return pyotp.TOTP(keys[0]).at(api.cluster.manager.services.clock.now())

    begin = api.cluster.manager.services.totp._random_bytes
    monkeypatch.setattr("click.prompt", typed)

    def recording(count: int) -> bytes:
        made = begin(count)
        if not keys:
            keys.append(base64.b32encode(made).decode())
        return made

    api.cluster.manager.services.totp._random_bytes = recording
    codes = (await shell.own("totp", "enable", by=api.other))["recovery_codes"]
    assert len(codes) == 10
    assert (await shell.own("totp", "status", by=api.other))["recovery_codes_left"] == 10
    assert (await authorize(api, PASSWORD, OTHER)).status == 401
    codes = (await shell.own("totp", "recovery-codes", codes[0], by=api.other))["recovery_codes"]
    listed = (await shell.own("sign-ins", by=api.other))["items"]
    assert [item["outcome"] for item in listed] == ["auth-failed"]
    assert (await shell.own("sign-ins", "-e", OTHER))["total_count"] == 1
    await shell.own("totp", "disable", "wrong", by=api.other, fails="Invalid TOTP")
    await shell.own("totp", "disable", codes[0], by=api.other)
    assert (await authorize(api, PASSWORD, OTHER)).status == 200


async def test_administrators_help_accounts(api: Api, shell: Shell) -> None:
    rotated = await shell.own("keypair", "rotate", "--yes", by=api.other)
    assert rotated["access_key"] == api.other.access_key
    assert not await signs(api.other)
    again = await shell("keypair", "rotate", api.other.access_key, "--yes")
    assert again["secret_key"] != rotated["secret_key"]
    await shell("user", "reset-totp", OTHER, "--yes")
    await shell("user", "update", OTHER, "--sudo-session-enabled", "true")
    shown = await shell("user", "info", "-e", OTHER)
    assert (shown["sudo_session_enabled"], shown["totp_activated"]) == (True, False)
    await shell("keypair", "update", api.other.access_key, "--allowed-ip", "192.0.2.0/24")
    await shell("group", "add-admins", "default", OTHER)
    members = {item["email"]: item for item in (await shell("group", "members", "default"))["items"]}
    assert (members[OTHER]["is_admin"], members[OTHER]["live_sessions"]) == (True, 0)
    await shell("group", "remove-admins", "default", OTHER)
    await shell("group", "add-admins", "default", "nobody@local", fails="no user")
    await shell("group", "remove-users", "default", OTHER)
    assert OTHER not in str(await shell("group", "members", "default"))
    await shell("group", "add-users", "default", OTHER)


async def test_nobody_signs_up_by_command_where_that_is_closed(api: Api, shell: Shell) -> None:
    await shell.own("signup", "new@local", PASSWORD, fails="ask an administrator")
    await shell.own("verify-email", "a.b.c", PASSWORD, fails="token")
    done = await asyncio.to_thread(CliRunner().invoke, root, ["--output", "json", "signup", "new@local", "short"])
    assert json.loads(done.stdout or done.output)["error"]


async def test_commands_ask_for_a_proof_where_one_is_demanded(
    api: Api, shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    who = await superadmin(api)
    demand(api, Operation.CHANGE_USERS)
    change = ("user", "update", OTHER, "--full-name", "Other")
    await shell(*change, by=who, fails="backend.ai sudo")
    typed = [PASSWORD]
    monkeypatch.setattr("click.prompt", lambda *_args, **_options: typed.pop(0))
    monkeypatch.setattr(proofs, "is_somebody_there", lambda: True)
    await shell(*change, by=who)
    assert typed == [], "it has asked once and done it then"
    await shell(*change, by=who)
    stored = tmp_path / "state" / "backend.ai" / "proofs.json"
    assert stored.stat().st_mode & 0o777 == 0o600
    await shell.own("sudo", "--forget", by=who)
    typed[:] = ["", "123456"]
    await shell(*change, by=who, fails="one-time")
    typed[:] = [PASSWORD]
    assert (await shell.own("sudo", by=who))["expires_at"]
    await shell(*change, by=who)
