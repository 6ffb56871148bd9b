"""What administrators do by the published client to users, tenants, limits, resource groups and agents, judged as in
:mod:`tests.conformance.checks`."""

from __future__ import annotations

import contextlib
import json
import subprocess
from datetime import UTC, datetime
from typing import Any

from ai.backend.client.exceptions import BackendAPIError
from ai.backend.client.session import Session
from tests.conformance.checks import Scene, ended
from tests.conformance.folder_admin_checks import boss_of

COVERED = {
    "admin_users": ["admin user", "admin keypair"],
    "admin_tenants": ["admin domain", "admin group"],
    "admin_limits": ["admin keypair-resource-policy", "admin scaling-group"],
    "admin_agents": ["admin agent"],
    "admin_usage": ["admin resource"],
    "admin_state": ["admin manager", "admin announcement", "server-logs"],
}
_STATISTICS = """
import json
from ai.backend.client.session import Session
with Session() as session:
    resource = session.Resource
    print(json.dumps([resource.user_monthly_stats()[-1], resource.admin_monthly_stats()[-1]]))
"""
PASSWORD = "a long password"


def _admin(scene: Scene) -> Session:
    assert scene.admin is not None
    return scene.admin


def _did(scene: Scene, *commands: tuple[str, ...]) -> list[Any]:
    """What the client says to each of these, below ``admin``, as JSON; every mutation among them must be done."""
    told = []
    for arguments, said in zip(
        commands, boss_of(scene).several(*(("--output", "json", "admin", *one) for one in commands)), strict=True
    ):
        value = json.loads("{" + ended(said).out.partition("{")[2])  # behind a question that was answered
        assert value.get("ok", True), (arguments, said.all)
        told.append(value)
    return told


def _items(told: Any, key: str = "name") -> dict[str, Any]:
    return {one[key]: one for one in told["items"]}


def check_admin_users(scene: Scene) -> None:
    admin, email = _admin(scene), "conf@example.com"
    try:
        added, listed, info, pair, _ = _did(
            scene,
            ("user", "add", "default", email, PASSWORD, "-n", "Conf", "-r", "user"),
            ("user", "list", "--filter", f'email == "{email}" & status == "ACTIVE"', "--order", "-created_at"),
            ("user", "info", "-e", email),
            ("keypair", "add", email, "default", "-r", "500"),
            ("user", "update", email, "-n", "Changed", "-s", "inactive"),
        )
        assert added["user"]["email"] == email, added
        assert [one["full_name"] for one in listed["items"]] == ["Conf"], listed
        assert info["items"][0]["groups"] == [{"id": info["items"][0]["groups"][0]["id"], "name": "default"}], info
        found = admin.User.detail(email)
        assert (found["full_name"], found["status"]) == ("Changed", "inactive")
        access_key = pair["keypair"]["access_key"]
        assert len(pair["keypair"]["secret_key"]) >= 40, "the secret is told at the creation"
        mine, *_ = _did(
            scene,
            ("keypair", "list", "-u", email),
            ("keypair", "update", access_key, "-r", "700"),
            ("keypair", "deactivate", access_key),
        )
        assert access_key in _items(mine, "access_key"), mine
        keys = _keys(admin, email)
        assert (keys[access_key]["is_active"], keys[access_key]["rate_limit"]) == (False, 700)
        _did(scene, ("keypair", "activate", access_key))
        assert _keys(admin, email)[access_key]["is_active"]
        _did(scene, ("keypair", "delete", access_key), ("user", "delete", email))
        assert access_key not in _keys(admin, email)
        assert admin.User.detail(email)["status"] == "deleted"
        _did(scene, ("user", "purge", email))
        assert not admin.User.paginated_list(filter=f'email == "{email}"').items
    finally:
        with contextlib.suppress(BackendAPIError):
            admin.User.purge(email)


def _keys(admin: Session, email: str) -> dict[str, Any]:
    return {one["access_key"]: one for one in admin.KeyPair.paginated_list(user_id=email, page_size=100).items}


def check_admin_tenants(scene: Scene) -> None:
    admin, name = _admin(scene), "conf-domain"
    try:
        user = admin.User.detail()["uuid"]
        _, listed, info, _, group, groups = _did(
            scene,
            ("domain", "add", name, "-d", "made", "--total-resource-slots", '{"cpu": 4}'),
            ("domain", "list"),
            ("domain", "info", name),
            ("domain", "update", name, "--description", "changed"),
            ("group", "add", "default", "conf-group", "-d", "made"),
            ("group", "list", "-d", "default"),
        )
        assert name in _items(listed), listed
        assert info["items"][0]["description"] == "made", info
        found = admin.Domain.detail(name)
        assert (found["description"], json.loads(found["total_resource_slots"])) == ("changed", {"cpu": "4"})
        assert "conf-group" in _items(groups), groups
        gid = group["group"]["id"]
        told, *_ = _did(
            scene,
            ("group", "info", gid),
            ("group", "update", gid, "-d", "changed"),
            ("group", "add-users", gid, user),
            ("group", "remove-users", gid, user),
            ("group", "add-users", gid, user),
            ("group", "delete", gid),
        )
        assert told["items"][0]["name"] == "conf-group", told
        seen = admin.Group.detail(gid)
        assert seen is not None
        assert (seen["description"], seen["is_active"]) == ("changed", False)
        assert "conf-group" in [one["name"] for one in admin.User.detail()["groups"]]
        _did(scene, ("group", "purge", gid), ("domain", "delete", name))
        assert admin.Group.detail(gid) is None
        assert admin.Domain.detail(name)["is_active"] is False
        _did(scene, ("domain", "purge", name))
        assert name not in [one["name"] for one in admin.Domain.list()]
    finally:
        for one in admin.Group.from_name("conf-group"):
            admin.Group.purge(one["id"])
        with contextlib.suppress(BackendAPIError):
            admin.Domain.purge(name)


def check_admin_limits(scene: Scene) -> None:
    admin, name = _admin(scene), "conf-limits"
    policy, group = "keypair-resource-policy", "scaling-group"
    options = '{"agent_selection_strategy": "concentrated"}'
    try:
        _, policies, _, _, groups, info, _, _ = _did(
            scene,
            (policy, "add", name, "--max-concurrent-sessions", "3", "--total-resource-slots", '{"cpu": 2}'),
            (policy, "list"),
            (policy, "update", name, "--max-concurrent-sessions", "5"),
            (group, "add", name, "-d", "made", "--private", "--scheduler", "fifo"),
            (group, "list"),
            (group, "info", name),
            (group, "update", name, "--scheduler", "drf", "--scheduler-opts", options),
            (group, "associate-scaling-group", name, "default"),
        )
        assert name in _items(policies), policies
        assert admin.KeypairResourcePolicy.detail(name)["max_concurrent_sessions"] == 5
        assert _items(groups)[name]["is_public"] is False, groups
        assert info["items"][0]["description"] == "made", info
        found = admin.ScalingGroup.detail(name)
        assert found is not None
        assert (found["scheduler"], json.loads(found["scheduler_opts"])) == ("drf", json.loads(options))
        assert name in [one["name"] for one in scene.server.ScalingGroup.list_available("default")]
        available, _ = _did(
            scene, (group, "get-available", "default"), (group, "dissociate-scaling-group", name, "default")
        )
        assert name in _items(available), available
        assert name not in [one["name"] for one in scene.server.ScalingGroup.list_available("default")]
        _did(scene, (policy, "delete", name), (group, "delete", name))
        assert admin.ScalingGroup.detail(name) is None
        assert name not in [one["name"] for one in admin.KeypairResourcePolicy.list()]
    finally:
        for area in (admin.KeypairResourcePolicy, admin.ScalingGroup):
            with contextlib.suppress(BackendAPIError):
                area.delete(name)


def check_admin_agents(scene: Scene) -> None:
    [agent] = _admin(scene).Agent.paginated_list().items
    listed, info = _did(scene, ("agent", "list"), ("agent", "info", agent["id"]))
    assert list(_items(listed, "id")) == [agent["id"]], listed
    told = info["items"][0]
    assert (told["id"], told["status"]) == (agent["id"], "ALIVE"), info
    assert listed["items"][0]["scaling_group"] == agent["scaling_group"]


def _said(scene: Scene, *commands: tuple[str, ...]) -> list[str]:
    """What the client prints, each by a superadmin."""
    return [ended(said).all for said in boss_of(scene).several(*commands)]


def check_admin_usage(scene: Scene) -> None:
    admin, now = _admin(scene), datetime.now(UTC)
    group, day = admin.Group.from_name("default")[0]["id"], now.strftime("%Y%m%d")
    resource = ("admin", "resource")
    with scene.session("conf-usage"):
        month, period, empty, recount, slots, types = _said(
            scene,
            (*resource, "usage-per-month", now.strftime("%Y%m"), group),
            (*resource, "usage-per-period", group, day, day),
            (*resource, "usage-per-period", group, "20200101", "20200102"),
            (*resource, "recalculate-usage"),
            (*resource, "query-slots"),
            (*resource, "vfolder-types"),
        )
        for report in (month, period):
            assert f"Group: default ({group})" in report, report
            assert f"Identity: conf-usage / {scene.client.keys['BACKEND_ACCESS_KEY']}" in report, report
            assert f"{128 * 1024**2} mem (bytes)" in report, report
        assert "No usage information" in empty, empty
        assert "is re-calculated" in recount, recount
        assert "cpu (count)" in slots, slots
        assert "user" in types, types
        boss = boss_of(scene)
        done = subprocess.run(
            [boss.python, "-c", _STATISTICS],
            env=boss.environment(),
            cwd=boss.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        own, everybodys = json.loads(done.stdout)
        assert own["num_sessions"] == {"value": 0, "unit_hint": "count"}, own
        assert everybodys["num_sessions"]["value"] >= 1, everybodys


def check_admin_state(scene: Scene) -> None:
    admin, manager = _admin(scene), ("admin", "manager")
    [agent] = admin.Agent.paginated_list().items
    try:
        frozen, status, *_ = _said(
            scene,
            (*manager, "freeze"),
            (*manager, "status"),
            (*manager, "scheduler", "exclude-agents", agent["id"]),
            ("admin", "announcement", "update", "-m", "Hear *this*"),
        )
        assert "successfully frozen" in frozen, frozen
        assert "frozen" in status, status
        assert admin.Manager.status()["status"] == "frozen"
        assert admin.Agent.paginated_list().items[0]["schedulable"] is False
        told, running, *_ = _said(
            scene,
            ("admin", "announcement", "get"),
            (*manager, "unfreeze"),
            (*manager, "scheduler", "include-agents", agent["id"]),
        )
        assert "Hear *this*" in told, told
        assert "successfully unfrozen" in running, running
        assert admin.Manager.status()["status"] == "running"
        assert "Server Announcement" in ended(scene.client("ps")).err
        deleted, nothing, logs = _said(
            scene,
            ("admin", "announcement", "delete"),
            ("admin", "announcement", "get"),
            ("server-logs", "list"),
        )
        assert "Deleted announcement" in deleted, deleted
        assert "No announcements" in nothing, nothing
        assert "Total log count" in logs, logs
    finally:
        admin.Manager.unfreeze()
        admin.Manager.update_announcement(False)
        admin.Manager.scheduler_op("include-agents", [agent["id"]])
