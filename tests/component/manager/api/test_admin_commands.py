"""`backend.ai admin ...` against a real manager: every command that changes something, and what it says."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner

from ai.backend.cli.main import root
from ai.backend.client import config
from tests.component.manager.api.conftest import Api
from tests.support.signed_http import RawClient


class Shell:
    """The command in this process, signed by one of the clients."""

    def __init__(self, api: Api, patch: pytest.MonkeyPatch) -> None:
        self._api = api
        self._patch = patch

    async def __call__(self, *arguments: str, by: RawClient | None = None, fails: str = "") -> Any:
        """What it prints as JSON; with ``fails`` its error must say that."""
        client = by or self._api.admin
        self._patch.setenv("BACKEND_ENDPOINT", f"http://127.0.0.1:{self._api.port}")
        self._patch.setenv("BACKEND_ACCESS_KEY", client.access_key)
        self._patch.setenv("BACKEND_SECRET_KEY", client.secret_key)
        self._patch.setattr(config, "_config", None)
        command = ["--output", "json", "admin", *arguments]
        done = await asyncio.to_thread(CliRunner().invoke, root, command)
        if fails:
            assert done.exit_code != 0, done.output
            assert fails in done.output
            return None
        assert done.exit_code == 0, (arguments, done.output, done.stderr)
        return json.loads(done.stdout)

    async def text(self, *arguments: str) -> str:
        done = await asyncio.to_thread(CliRunner().invoke, root, ["admin", *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout


@pytest.fixture
def shell(api: Api, monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(api, monkeypatch)


async def test_resource_groups_presets_and_agents(shell: Shell) -> None:
    await shell("scaling-group", "add", "gpu", "--private", "--scheduler", "drf", "-d", "fast ones")
    options = '{"agent_selection_strategy": "concentrated"}'
    await shell("resource-group", "update", "gpu", "--scheduler", "fair_share", "--scheduler-opts", options)
    found = await shell("scaling-group", "info", "gpu")
    assert (found["scheduler"], found["is_public"], found["scheduler_opts"]) == (
        "fair-share",
        False,
        json.loads(options),
    )
    assert [g["name"] for g in await shell("scaling-group", "list")] == ["default", "gpu"]
    assert "concentrated" in await shell.text("scaling-group", "list")
    await shell("scaling-group", "update", "gpu", "--scheduler", "random", fails="known are")
    await shell("scaling-group", "update", "gpu", "--scheduler-opts", "{", fails="not JSON")
    await shell("scaling-group", "info", "nothing", fails="no resource group")
    await shell("scaling-group", "associate-scaling-group", "gpu", "default")
    available = await shell("scaling-group", "get-available", "default")
    assert [g["name"] for g in available] == ["default", "gpu"]
    await shell("scaling-group", "dissociate-scaling-group", "gpu", "default")
    await shell("scaling-group", "associate-scaling-group", "gpu", fails="name one of")
    await shell("agent", "update", "agent-1", "--schedulable", "false", "--scaling-group", "gpu")
    agent = (await shell("agent", "list"))["items"][0]
    assert (agent["schedulable"], agent["scaling_group"]) == (False, "gpu")
    await shell("scaling-group", "delete", "gpu", fails="living agents")
    await shell("agent", "update", "agent-1", "--schedulable", "true", "--scaling-group", "default")
    await shell("scaling-group", "delete", "gpu")
    await shell("resource-preset", "add", "small", "--resource-slots", '{"cpu": "2"}', "--shared-memory", "64m")
    await shell("resource-preset", "update", "small", "--shared-memory", "128m")
    assert (await shell("resource-preset", "list"))[0]["shared_memory"] == 128 << 20
    await shell("resource-preset", "delete", "small")


async def test_people_and_tenants(api: Api, shell: Shell) -> None:
    await shell("domain", "add", "lab", "-d", "the lab", "--total-resource-slots", '{"cpu": "8"}')
    await shell("domain", "update", "lab", "--vfolder-host-perms", '{"local:volume1": ["upload-file"]}')
    assert (await shell("domain", "info", "lab"))["allowed_vfolder_hosts"] == {"local:volume1": ["upload-file"]}
    assert [d["name"] for d in await shell("domain", "list")] == ["default", "lab"]
    await shell("group", "add", "lab", "team", "-d", "x")
    await shell("group", "update", "team", "-n", "crew")
    made = await shell("user", "add", "lab", "ann@lab", "a long password", "-n", "Ann", "-r", "admin")
    assert made["domain_name"] == "lab"
    await shell("user", "add", "lab", "ann@lab", "short", fails="password")
    await shell("user", "add", "lab", "bob@lab", "a long password")
    await shell("group", "add-users", "crew", "ann@lab", "bob@lab")
    await shell("group", "remove-users", "crew", "ann@lab")
    listed = await shell("user", "list", "--filter", 'domain_name == "lab"', "--order", "email")
    assert [(u["email"], [g["name"] for g in u["groups"]]) for u in listed["items"]] == [
        ("ann@lab", []),
        ("bob@lab", ["crew"]),
    ]
    assert (await shell("user", "info", "-e", "ann@lab"))["full_name"] == "Ann"
    pair = await shell("keypair", "add", "ann@lab", "default", "-r", "100")
    ann = RawClient(port=api.port, access_key=pair["access_key"], secret_key=pair["secret_key"])
    seen = await shell("user", "list", by=ann)
    assert {u["domain_name"] for u in seen["items"]} == {"lab"}, "an administrator sees their domain"
    await shell("user", "update", "bob@lab", "-s", "inactive", by=ann)
    await shell("user", "update", "bob@lab", "-r", "admin", fails="administrate", by=ann)
    await shell("scaling-group", "add", "x", fails="superadmins", by=ann)
    keys = await shell("keypair", "list", "-u", "ann@lab")
    assert keys["total_count"] == 2
    await shell("keypair", "deactivate", pair["access_key"])
    await shell("user", "info", fails="auth", by=ann)
    await shell("keypair", "activate", pair["access_key"])
    await shell("keypair", "update", pair["access_key"], "--rate-limit", "5")
    await shell("keypair-resource-policy", "add", "tight", "--max-concurrent-sessions", "1")
    await shell("keypair", "update", pair["access_key"], "--resource-policy", "tight")
    await shell("keypair-resource-policy", "delete", "tight", fails="tight")
    await shell("keypair", "delete", pair["access_key"])
    await shell("keypair-resource-policy", "update", "tight", "--idle-timeout", "60")
    assert (await shell("keypair-resource-policy", "info", "tight"))["idle_timeout"] == 60
    await shell("keypair-resource-policy", "delete", "tight")
    for email in ("ann@lab", "bob@lab"):
        await shell("user", "delete", email)
        await shell("user", "purge", email, "--yes")
    await shell("domain", "purge", "lab", "--yes", fails="groups")
    await shell("group", "delete", "crew")
    await shell("group", "purge", "crew", "--yes")
    await shell("domain", "delete", "lab")
    await shell("domain", "purge", "lab", "--yes")
    await shell("domain", "info", "lab", fails="domain")
