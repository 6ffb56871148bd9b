"""`backend.ai admin ...` against a real manager: every command that changes something, and what it says."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from ai.backend.cli.framework import announcements
from tests.component.manager.api.conftest import Api
from tests.component.manager.api.shell import Shell
from tests.support.signed_http import RawClient


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
    assert "concentrated" in await shell.text("scaling-group", "list", "--wide")
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
    choice = ("--device-request", 'amount("mock.device", 2)', "--device-request", 'amount("mock.device", 1)')
    await shell("resource-preset", "update", "small", "--shared-memory", "0", *choice)
    preset = (await shell("resource-preset", "list"))[0]
    assert (preset["shared_memory"], preset["resource_slots"]) == (None, {"cpu": "2"})
    assert preset["device_requests"] == [choice[1], choice[3]]
    await shell("resource-preset", "update", "small", "--shared-memory", "much", fails="not a size")
    await shell("resource-preset", "update", "small", "--device-request", "")
    assert (await shell("resource-preset", "list"))[0]["device_requests"] == []
    await shell("resource-preset", "update", "other", "--shared-memory", "1m", fails="no preset")
    await shell("resource-preset", "delete", "small")


async def test_people_and_tenants(api: Api, shell: Shell) -> None:
    await shell("domain", "add", "odd", "-d", "[it begins like JSON")
    assert "[it begins like JSON" in await shell.text("domain", "list")
    await shell("domain", "purge", "odd", "-y")
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
    await shell("keypair", "delete", pair["access_key"], "-y")
    waiting = ("--max-pending-session-count", "2", "--max-pending-session-resource-slots", '{"cpu": "4"}')
    folders = ("--max-vfolder-count", "3", "--max-vfolder-size", "1048576")
    await shell("keypair-resource-policy", "update", "tight", "--idle-timeout", "60", *waiting, *folders)
    await shell("keypair-resource-policy", "update", "tight", "--max-claims", "3", "--max-claim-idle-time", "600")
    tight = await shell("keypair-resource-policy", "info", "tight")
    assert (tight["idle_timeout"], tight["max_pending_session_count"]) == (60, 2)
    assert (tight["max_claims"], tight["max_claim_idle_time"]) == (3, 600)
    assert tight["max_pending_session_resource_slots"] == {"cpu": "4"}
    assert (tight["max_vfolder_count"], tight["max_vfolder_size"]) == (3, 1 << 20)
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


async def test_the_installation_as_a_whole(api: Api, shell: Shell) -> None:
    assert (await shell("manager", "freeze"))["status"] == "frozen"
    assert (await shell("manager", "status"))["status"] == "frozen"
    assert (await shell("manager", "unfreeze"))["status"] == "running"
    await shell("manager", "freeze", "--wait", "--force-kill", fails="exclude each other")
    await shell("manager", "freeze", "--force-kill", fails="use -y")
    assert (await shell("manager", "status"))["status"] == "running"
    assert (await shell("manager", "freeze", "--force-kill", "-y"))["status"] == "frozen"
    await shell("manager", "unfreeze")
    await shell("manager", "freeze", by=api.user, fails="superadmins")
    await shell("manager", "freeze", "--wait")  # nothing runs, so nothing is waited for
    await shell("manager", "unfreeze")
    await shell("manager", "scheduler", "exclude-agents", "agent-1")
    assert not (await shell("agent", "list"))["items"][0]["schedulable"]
    await shell("manager", "scheduler", "include-agents", "agent-1")
    await shell("manager", "scheduler", "include-agents", "agent-2", fails="agent-2")
    await shell("announcement", "update", "-m", "Closed on *Sunday*")
    assert (await shell("announcement", "get"))["message"] == "Closed on *Sunday*"
    assert "Sunday" in await shell.text("announcement", "get")
    await shell("announcement", "dismiss", fails="no announcement was seen")
    shell.patch.setattr(announcements, "shows_announcements", lambda screen: not screen.is_quiet)
    heard = [await shell.noise("manager", "status") for _ in range(2)]
    assert all("│ Closed on *Sunday*" in told for told in heard), "until it is dismissed"
    assert await shell("announcement", "dismiss") == {"dismissed": True}
    assert "Sunday" not in await shell.noise("manager", "status")
    await shell("announcement", "update", "-m", "Open \x1b[1mtoday")
    assert "│ Open \\x1b[1mtoday" in await shell.noise("manager", "status"), (
        "another one; a terminal obeys nothing of it"
    )
    await shell("announcement", "delete", "-y")
    assert "today" not in await shell.noise("manager", "status")
    assert (await shell("announcement", "get"))["enabled"] is False
    await shell("announcement", "update", "-m", " ", fails="is empty")


async def test_what_was_used_by_command(api: Api, shell: Shell) -> None:
    await api.create(name="used", config={"resources": {"cpu": 1, "mem": "64m"}})
    now = datetime.now(UTC)
    [group] = await shell("resource", "usage-per-month", now.strftime("%Y%m"))
    assert [c["name"] for c in group["c_infos"]] == ["used"]
    day, group_id = now.strftime("%Y%m%d"), group["g_id"]
    [found] = await shell("resource", "usage-per-period", group_id, day, day)
    assert found["c_count"] == 1
    assert "cpu=1, mem=64m" in await shell.text("resource", "usage-per-period", group_id, day, day)
    assert await shell("resource", "usage-per-period", group_id, "20200101", "20200101") == []
    await shell("resource", "usage-per-period", group_id, "x", day, fails="YYYYMMDD")
    await shell("resource", "usage-per-month", "202601", by=api.user, fails="administrators")
    assert (await shell("resource", "recalculate-usage"))["drift"] == {}
    assert "right" in await shell.text("resource", "recalculate-usage")
    assert "cpu" in await shell("resource", "query-slots")
    assert isinstance(await shell("resource", "vfolder-types"), list)
    assert isinstance(await shell("resource", "docker-registries"), list)


async def test_what_is_one_s_own(api: Api, shell: Shell, tmp_path: Path) -> None:
    await shell("user", "update", "other@local", "--allowed-ip", "127.0.0.1, ::1")
    told = await shell("user", "info", "-e", "other@local")
    assert told["allowed_client_ip"] == ["127.0.0.1/32", "::1/128"]
    mine = tmp_path / "id"
    made = await shell.own("keypair", "ssh-key", "generate", "-f", str(mine), by=api.other)
    assert mine.stat().st_mode & 0o777 == 0o600
    assert mine.read_text().startswith("-----BEGIN OPENSSH PRIVATE KEY")
    assert (await shell.own("keypair", "ssh-key", "show", by=api.other))["ssh_public_key"] == made["ssh_public_key"]
    await shell.own("keypair", "ssh-key", "generate", "-f", str(mine), by=api.other, fails="cannot be written")
    public = tmp_path / "id.pub"
    public.write_text(made["ssh_public_key"] + "\n")
    assert await shell.own("keypair", "ssh-key", "upload", str(public)) == {"ssh_public_key": made["ssh_public_key"]}
    public.write_text("nonsense")
    await shell.own("keypair", "ssh-key", "upload", str(public), fails="public key")
    await shell.own("update-password", "a long password", "another one", "another one", by=api.other)
    await shell.own("update-password", "wrong", "another two", "another two", by=api.other, fails="wrong")
    await shell.own("update-password-no-auth", "default", "other@local", "another one", "another two", fails="sign in")
    body = {"severity": "error", "source": "client", "message": "it broke", "traceback": "line 1"}
    await api.user.request("POST", "/logs/error", json=body)
    assert (await shell.own("server-logs", "list", "-l", "5"))["logs"][0]["message"] == "it broke"
    assert "line 1" in await shell.text("server-logs", "list", inside=())
