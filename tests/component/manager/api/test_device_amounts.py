"""Amounts of device requests over the wire: REST, templates, presets, GraphQL, and the report of usage."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import SessionStatus
from ai.backend.manager.resources.model import ResourcePreset
from tests.component.manager.api.conftest import Api
from tests.component.manager.api.test_session_defaults_api import START, TEMPLATE, keep

AMOUNTS = [f'amount("mock.device", {count})' for count in (3, 1)]


async def create(api: Api, name: str, **config: Any) -> dict[str, Any]:
    return await api.create(name=name, config={"device_requests": AMOUNTS, **config})


async def test_every_reader_sees_the_amounts_of_the_chosen_alternative(api: Api) -> None:
    assert [(await create(api, name))["status"] for name in ("three", "only-one")] == ["RUNNING", "RUNNING"]
    assert [spec.slots["mock.device"] for spec in api.agent.created] == ["3", "1"]
    query = """query { compute_session_list(limit: 9, offset: 0) { items {
      name device_requests requested_slots occupied_slots containers { occupied_slots } } } }"""
    items = (await api.gql(query))["data"]["compute_session_list"]["items"]
    seen = {item["name"]: item for item in items}
    assert {name: item["device_requests"] for name, item in seen.items()} == dict.fromkeys(seen, AMOUNTS)
    for name, amount in {"three": "3", "only-one": "1"}.items():
        assert json.loads(seen[name]["requested_slots"])["mock.device"] == "3"
        assert json.loads(seen[name]["occupied_slots"])["mock.device"] == amount
        assert [json.loads(c["occupied_slots"])["mock.device"] for c in seen[name]["containers"]] == [amount]
    assert (await api.user.request("DELETE", "/session/only-one?forced=true")).status == 200
    stores = api.cluster.manager.stores
    (session,) = [s for s in await stores.sessions.by_status(list(SessionStatus)) if s.name == "only-one"]
    await api.cluster.manager.services.writer.wait_until(session.id, lambda s: s.status.is_final, timeout_s=30)
    month = {"month": datetime.now(UTC).strftime("%Y%m"), "group_ids": [str(session.group_id)]}
    (used,) = (await api.admin.request("GET", "/resource/usage/month", json=month)).json()
    assert {info["name"]: info["slots"]["mock.device"] for info in used["c_infos"]} == {"three": "3", "only-one": "1"}


async def test_what_is_wrong_is_a_problem_with_its_field(api: Api) -> None:
    for config, status, text in (
        ({"device_requests": ['amount("mock.device", 0)']}, 400, "an amount is more than zero at column 23"),
        ({"device_requests": ['amount("no.device", 1)']}, 400, "has ever offered the resource slot 'no.device'"),
        ({"device_requests": AMOUNTS, "resources": {"mock.device": 2}}, 400, "which no alternative takes"),
        ({"device_requests": ['amount("mock.device", 5)']}, 406, "lacks mock.device (1 short)"),
    ):
        reply = await api.user.request("POST", "/session", json={"image": "python", "name": "wrong", "config": config})
        assert reply.headers["content-type"].startswith("application/problem+json")
        assert reply.status == status, reply.body
        assert text in reply.json()["msg"]
        assert {"config.device_requests", "config.resources"} & reply.json()["data"].keys()


async def test_what_would_start_of_an_alternative_is_said_and_accepted(api: Api) -> None:
    await create(api, "three")  # of four
    requests = ['plugin == "mock" && amount("mock.device", 4)', 'amount("mock.device", 3)']
    body = {"image": "python", "name": "next", "config": {"device_requests": requests}}
    explained = (await api.user.request("POST", "/session/_/explain", json=body)).json()
    assert (explained["verdict"], explained["remedy"]) == ("waits", "others")
    assert [(each["resources"]["mock.device"], each["device_requests"]) for each in explained["nearest"]] == [
        ("1", ['plugin == "mock" && amount("mock.device", 1)']),
        ("1", ['amount("mock.device", 1)']),
    ]
    nearest = explained["nearest"][0]
    config = {"resources": nearest["resources"], "device_requests": nearest["device_requests"]}
    assert (await api.create(name="next", config=config))["status"] == "RUNNING"


async def test_a_template_says_amounts(api: Api) -> None:
    requests = "".join(f"\n    - {json.dumps(text)}" for text in AMOUNTS)
    kept = await keep(api.user, f"{TEMPLATE}  deviceRequests:{requests}\n")
    body = {**START, "template_id": kept, "name": "from-template"}
    reply = await api.user.request("POST", "/session/_/create-from-template", json=body)
    assert reply.status == 201, reply.body
    session = await api.cluster.manager.services.sessions.get(api.cluster.user, "from-template")
    assert session.device_requests == tuple(AMOUNTS)
    assert session.requested_slots["mock.device"] == 3


async def test_a_preset_fits_where_one_of_its_alternatives_does(api: Api) -> None:
    resources, presets = api.cluster.manager.services.resources, api.cluster.manager.stores.presets
    create_preset = """mutation($p: CreateResourcePresetInput!) {
      create_resource_preset(name: "choice", props: $p) { ok msg resource_preset { device_requests } } }"""
    props = {"resource_slots": json.dumps({"cpu": "1"}), "device_requests": AMOUNTS}
    made = (await api.gql(create_preset, api.admin, p=props))["data"]["create_resource_preset"]
    assert (made["ok"], made["resource_preset"]) == (True, {"device_requests": AMOUNTS}), made
    await presets.put_preset(
        ResourcePreset(name="plain", resource_slots=ResourceSlot.parse({"cpu": "1", "mock.device": "3"}))
    )

    async def fitting() -> set[str]:
        return {preset.name for preset, fits in (await resources.check_presets(api.cluster.user)).presets if fits}

    assert {"choice", "plain"} <= await fitting()
    await create(api, "three")
    assert "choice" in await fitting()
    assert "plain" not in await fitting()
    await create(api, "only-one")
    assert "choice" not in await fitting()


@pytest.mark.parametrize(
    ("props", "field"),
    [
        ({"shared_memory": "much"}, "shared_memory"),
        ({"resource_slots": "[]"}, "resource_slots"),
        ({"resource_slots": '{"cpu": "-1"}'}, "resource_slots"),
        ({"device_requests": ["=="]}, "device_requests"),
    ],
)
async def test_a_refused_preset_names_its_field_and_stays(api: Api, props: dict[str, Any], field: str) -> None:
    create = 'mutation($p: CreateResourcePresetInput!) { create_resource_preset(name: "kept", props: $p) { ok } }'
    modify = 'mutation($p: ModifyResourcePresetInput!) { modify_resource_preset(name: "kept", props: $p) { ok msg } }'
    kept = {"resource_slots": json.dumps({"cpu": "1"}), "shared_memory": "64m", "device_requests": AMOUNTS}
    assert (await api.gql(create, api.admin, p=kept))["data"]["create_resource_preset"]["ok"]
    reply = await api.gql(modify, api.admin, p=props)
    assert reply["data"]["modify_resource_preset"]["ok"] is False
    assert field in reply["extensions"]["problems"]["modify_resource_preset"]["data"]
    reply = await api.gql(modify, api.user, p={"shared_memory": "1m"})
    assert reply["data"]["modify_resource_preset"]["ok"] is False, "for superadmins alone"
    query = '{ resource_preset(name: "kept") { resource_slots shared_memory device_requests } }'
    preset = (await api.gql(query, api.admin))["data"]["resource_preset"]
    assert preset == {**kept, "shared_memory": 64 << 20}
