"""What operators see: the audit trail, the settings in force, permissions, and replays of the scheduler."""

from __future__ import annotations

from typing import Any

from ai.backend.core.scheduling.snapshot import load_json
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.system.installation import HIDDEN, settings_in_force
from tests.component.manager.api.conftest import Api
from tests.component.manager.api.test_people_api import new_user

PATHS = (
    "/logs/audit",
    "/manager/settings",
    "/scheduling/dump?scaling_group=default",
    "/scheduling/replay?scaling_group=default",
    "/resource/app-proxies",
    "/resource/app-proxies/circuits?scaling_group=default&worker=w",
)


async def get(api: Api, path: str) -> dict[str, Any]:
    reply = await api.admin.request("GET", path)
    assert reply.status == 200, reply.body
    answer: dict[str, Any] = reply.json()
    return answer


async def test_they_are_for_operators_alone(api: Api) -> None:
    for path in PATHS:
        assert (await api.user.request("GET", path)).status == 403, path
    removal = "/resource/app-proxies/circuits/c?scaling_group=default"
    assert (await api.user.request("DELETE", removal)).status == 403


async def test_the_audit_trail_is_read_page_by_page(api: Api) -> None:
    await new_user(api, "ann@local")
    for n in range(5):
        await api.user.request("DELETE", f"/session/nothing-{n}")
    newest = await get(api, "/logs/audit?limit=2")
    assert (len(newest["items"]), newest["has_more"]) == (2, True)
    first = newest["items"][0]
    assert (first["email"], first["object_id"], first["object_type"]) == ("user@local", "nothing-4", "session")
    assert first["outcome"] != "ok"
    older = await get(api, f"/logs/audit?limit=2&before={newest['items'][-1]['id']}")
    assert [item["object_id"] for item in older["items"]] == ["nothing-2", "nothing-1"]
    of_admin = await get(api, "/logs/audit?email=admin@local")
    assert {item["email"] for item in of_admin["items"]} == {"admin@local"}
    assert (await get(api, "/logs/audit?email=nobody@local")) == {"items": [], "has_more": False}
    by_text = await get(api, "/logs/audit?text=nothing-3")
    assert [item["object_id"] for item in by_text["items"]] == ["nothing-3"]
    assert not (await get(api, "/logs/audit?text=%25"))["items"], "it is text, and no pattern"
    refused = await get(api, "/logs/audit?refused=true&limit=100")
    assert {item["outcome"] for item in refused["items"]}.isdisjoint({"ok", "success"})
    assert refused["items"]
    assert "success" in {item["outcome"] for item in of_admin["items"]}
    for bad in ("limit=0", "limit=101", "before=0", "refused=maybe", "text="):
        assert (await api.admin.request("GET", f"/logs/audit?{bad}")).status == 400, bad


def test_settings_hide_secrets_and_name_what_has_no_effect() -> None:
    url = "postgresql://backend:s3cret@db/backend"
    settings = ManagerSettings.model_validate({"database": {"url": url}, "accounts": {"passwords": {"history": 3}}})
    shown = {item.key: item for item in settings_in_force(settings)}
    assert "s3cret" not in repr(shown)
    assert shown["database.url"].value == HIDDEN
    history = shown["accounts.passwords.history"]
    assert (history.value, history.default, history.is_set) == (3, 1, True)
    assert shown["accounts.passwords.min-length"].is_set is False
    assert any(item.without_effect for item in shown.values())
    assert all(item.description for item in shown.values())


async def test_the_settings_and_permissions_are_replied(api: Api) -> None:
    items = (await get(api, "/manager/settings"))["items"]
    assert {"sessions.retry-backoff-s"} <= {item["key"] for item in items if item["value"] != item["default"]}
    permissions = {item["operation"]: item for item in (await get(api, "/auth/permissions"))["items"]}
    assert permissions["change users"]["scopes"] == {
        "superadmin": "all",
        "admin": "domain",
        "monitor": "no",
        "user": "no",
    }
    assert permissions["change users"]["spared"] == ["admin", "monitor", "superadmin"]
    assert permissions["change the members of groups"]["project_admin"] is True


async def test_a_group_is_dumped_and_replayed(api: Api) -> None:
    dumped = await api.admin.request("GET", "/scheduling/dump?scaling_group=default")
    assert load_json(dumped.body).resource_group == "default"
    replayed = await get(api, "/scheduling/replay?scaling_group=default&placement=concentrated")
    assert replayed["other"]["placement"] == "concentrated"
    assert replayed["present"]["placement"] != "concentrated"
    assert "concentrated" in replayed["placements"]
    for bad in ("placement=x", "order=fair-share"):
        assert (await api.admin.request("GET", f"/scheduling/replay?scaling_group=default&{bad}")).status == 400, bad
    assert (await api.admin.request("GET", "/scheduling/dump?scaling_group=nothing")).status == 404


async def test_a_diagnosis_is_in_the_audit_trail_also_where_it_is_refused(api: Api) -> None:
    devices = {"cuda": ["GPU-5a7c"]}
    config: dict[str, Any] = {"diagnosed_devices": devices, "agentList": ["i-01"]}
    body = {"image": "python", "config": config}
    assert (await api.user.request("POST", "/session", json=body)).status in (403, 404)
    (record,) = (await get(api, "/logs/audit?email=user@local&limit=1"))["items"]
    assert record["detail"] == {"route": "POST /session", "agents": ["i-01"], "diagnosed_devices": devices}
    assert record["outcome"] != "ok"
    config["diagnosed_devices"] = {"cuda": []}
    assert (await api.admin.request("POST", "/session", json=body)).status == 400
