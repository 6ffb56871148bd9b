"""`backend.ai sesstpl`, `dotfile` and `start-template` against a real manager."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ai.backend.cli.main import root
from ai.backend.client import config
from tests.component.manager.api.conftest import Api
from tests.component.manager.api.test_session_defaults_api import TEMPLATE


async def test_templates_and_dotfiles_by_command(api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BACKEND_ENDPOINT", f"http://127.0.0.1:{api.port}")
    monkeypatch.setenv("BACKEND_ACCESS_KEY", api.user.access_key)
    monkeypatch.setenv("BACKEND_SECRET_KEY", api.user.secret_key)
    monkeypatch.setattr(config, "_config", None)

    async def run(*command: str, fails: str = "", given: str | None = None) -> str:
        done = await asyncio.to_thread(CliRunner().invoke, root, list(command), input=given)
        assert (done.exit_code != 0) is bool(fails), (command, done.output)
        assert fails in done.output
        return done.stdout

    (tmp_path / "t.yaml").write_text(TEMPLATE)
    made = json.loads(await run("--output", "json", "sesstpl", "create", "-f", str(tmp_path / "t.yaml")))
    (template,) = made["ids"]
    assert "sample" in await run("sesstpl", "list")
    assert "MYCONFIG: MAIN" in await run("sesstpl", "get", template)
    await run("sesstpl", "update", template, given=TEMPLATE.replace("name: sample", "name: other"))
    await run("sesstpl", "update", template, given="a: [", fails="cannot be read")
    await run("dotfile", "create", ".tool", "--perm", "600", given="one")
    await run("dotfile", "create", "/etc/tool", given="one", fails="begins with a dot")
    assert json.loads(await run("--output", "json", "dotfile", "list"))[0]["permission"] == "600"
    await run("dotfile", "update", ".tool", given="two")
    assert (await run("dotfile", "get", ".tool")).strip() == "two"
    assert json.loads(await run("--output", "json", "dotfile", "list"))[0]["permission"] == "600", "as before"
    await run("dotfile", "create", ".plain", given="three")
    kept = {
        entry["path"]: entry["permission"] for entry in json.loads(await run("--output", "json", "dotfile", "list"))
    }
    assert kept == {".tool": "600", ".plain": "755"}, "755 where --perm is not given (spec 03-11:598)"
    await run("dotfile", "delete", ".plain")
    assert "RUNNING" in await run("start-template", "-t", "by-command", template)
    (spec,) = api.agent.created
    assert (spec.environ["MYCONFIG"], spec.dotfiles[0].data) == ("MAIN", b"two")
    await run("start-template", "-t", "mine", "-e", "MYCONFIG=MINE", "-r", "cpu=1", "-r", "mem=64m", template)
    assert api.agent.created[1].environ["MYCONFIG"] == "MINE"
    await run("dotfile", "delete", ".tool")
    await run("sesstpl", "delete", template)
    await run("start-template", template, fails="no such session template")
