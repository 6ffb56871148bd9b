"""Acting for the owner of another keypair by ``owner_access_key`` (spec 03-07:1139)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.component.manager.api.conftest import Api

pytestmark = pytest.mark.usefixtures("api")


async def test_an_administrator_makes_and_trashes_a_folder_of_the_owner(api: Api) -> None:
    key = api.user.access_key
    await api.admin.request("POST", "/folders", json={"name": "data"})
    made = await api.admin.request("POST", f"/folders?owner_access_key={key}", json={"name": "data"})
    assert (made.status, made.json()["user"]) == (201, str(api.cluster.user.user_id))
    renamed = await api.admin.request(
        "POST", f"/folders/data/rename?owner_access_key={key}", json={"new_name": "theirs"}
    )
    assert renamed.status == 201
    assert [item["name"] for item in (await api.user.request("GET", "/folders")).json()] == ["theirs"]
    assert (await api.admin.request("DELETE", f"/folders/theirs?owner_access_key={key}")).status == 204
    assert (await api.user.request("GET", "/folders")).json() == []
    mine = await api.admin.request("GET", "/folders/data")
    assert (mine.status, mine.json()["status"]) == (200, "ready")


ASSUMING: list[tuple[str, str, dict[str, Any] | None]] = [
    ("POST", "/folders", {"name": "stolen"}),
    ("GET", "/folders", None),
    ("GET", "/folders/_/hosts", None),
    ("DELETE", "/folders/secret", None),
    ("POST", "/folders/secret/request-download", {"path": "a"}),
    ("GET", "/folders/invitations/list", None),
    ("POST", "/resource/check-presets", {}),
]


@pytest.mark.parametrize(("method", "path", "body"), ASSUMING, ids=[f"{m} {p}" for m, p, _ in ASSUMING])
async def test_a_user_cannot_act_for_another_keypair(
    api: Api, method: str, path: str, body: dict[str, Any] | None
) -> None:
    for key in (api.admin.access_key, api.other.access_key, "AKIANOBODY"):
        reply = await api.user.request(method, f"{path}?owner_access_key={key}", json=body)
        assert (reply.status, reply.problem) == (403, "forbidden")


async def test_presets_are_checked_for_the_owner(api: Api) -> None:
    session = await api.create(name="user-s1")
    path = f"/resource/check-presets?owner_access_key={api.user.access_key}"
    theirs = (await api.admin.request("POST", path, json={})).json()
    own = (await api.admin.request("POST", "/resource/check-presets", json={})).json()
    assert session["created"]
    assert theirs["keypair_using"]["cpu"] != "0"
    assert own["keypair_using"]["cpu"] == "0"


async def test_the_audit_trail_names_the_signer_and_the_owner(api: Api) -> None:
    await api.admin.request("POST", f"/folders?owner_access_key={api.user.access_key}", json={"name": "audited"})
    services = api.cluster.manager.services
    await services.audit.flush()
    record = next(r for r in await services.stores.audit.recent(20) if r.operation == "create")
    assert record.detail["owner_access_key"] == api.user.access_key
    assert record.user_id == api.cluster.admin.user_id


@pytest.mark.parametrize("path", ["/config/vfolder-types", "/scaling-groups", "/auth/role", "/manager/status"])
async def test_an_endpoint_without_owners_refuses_the_parameter(api: Api, path: str) -> None:
    reply = await api.admin.request("GET", f"{path}?owner_access_key={api.user.access_key}")
    assert (reply.status, reply.problem) == (400, "invalid-api-params")
    assert "owner_access_key" in reply.json()["data"]
