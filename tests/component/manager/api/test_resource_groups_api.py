"""Resource groups over GraphQL: made, changed, opened to somebody and removed (spec 03-09, wire contract 3.2)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.component.manager.api.conftest import Api
from tests.support.signed_http import RawClient

CREATE = """mutation($name: String!, $props: CreateScalingGroupInput!) {
  create_scaling_group(name: $name, props: $props) { ok msg scaling_group { name scheduler scheduler_opts } } }"""
MODIFY = """mutation($name: String!, $props: ModifyScalingGroupInput!) {
  modify_scaling_group(name: $name, props: $props) { ok msg } }"""
DELETE = "mutation($name: String!) { delete_scaling_group(name: $name) { ok msg } }"
MADE = {"driver": "static", "scheduler": "fifo", "is_public": False}


async def ask(api: Api, query: str, by: RawClient | None = None, **variables: Any) -> dict[str, Any]:
    """The answer of the only field."""
    reply = await api.gql(query, by or api.admin, **variables)
    assert "errors" not in reply, reply
    [answer] = reply["data"].values()
    told: dict[str, Any] = answer
    return told


async def open_to(api: Api, by: RawClient) -> list[str]:
    reply = await by.request("GET", "/scaling-groups?group=default")
    return [g["name"] for g in reply.json()["scaling_groups"]]


async def test_a_resource_group_is_made_scheduled_by_and_removed(api: Api) -> None:
    options = {"agent_selection_strategy": "concentrated", "pending_timeout": 60}
    props = {**MADE, "scheduler": "fair_share", "scheduler_opts": json.dumps(options)}
    made = await ask(api, CREATE, name="gpu", props=props)
    assert made["ok"], made
    assert made["scaling_group"]["scheduler"] == "fair-share", "every spelling is kept as one"
    assert json.loads(made["scaling_group"]["scheduler_opts"]) == options
    assert not (await ask(api, CREATE, name="gpu", props=MADE))["ok"]
    _, policy = await api.cluster.manager.scheduling("gpu")
    assert (policy.order, policy.placement) == ("fair-share", "concentrated"), "the scheduler knows it"
    changed = {"scheduler": "drf", "scheduler_opts": '{"agent_selection_strategy": "round-robin"}'}
    assert (await ask(api, MODIFY, name="gpu", props=changed))["ok"]
    _, policy = await api.cluster.manager.scheduling("gpu")
    assert (policy.order, policy.placement) == ("drf", "round-robin")
    assert (await ask(api, DELETE, name="gpu"))["ok"]
    assert not (await ask(api, DELETE, name="gpu"))["ok"]
    assert "living agents" in (await ask(api, DELETE, name="default"))["msg"], "an agent is there"


@pytest.mark.parametrize(
    ("props", "said"),
    [
        ({"scheduler": "random"}, "random"),
        ({"scheduler_opts": '{"agent_selection_strategy": "nearest"}'}, "agent_selection_strategy"),
        ({"scheduler_opts": '{"pending_timeout": -1}'}, "pending_timeout"),
        ({"scheduler_opts": '{"pending_timout": 1}'}, "pending_timout"),
        ({"scheduler_opts": "[1]"}, "object"),
        ({"driver": "magic"}, "driver"),
    ],
)
async def test_what_no_scheduler_knows_is_refused(api: Api, props: dict[str, Any], said: str) -> None:
    for answer in (
        await ask(api, MODIFY, name="default", props=props),
        await ask(api, CREATE, name="new", props={**MADE, **props}),
    ):
        assert not answer["ok"]
        assert said in answer["msg"]
    assert (await ask(api, '{ scaling_group(name: "default") { scheduler scheduler_opts } }')) == {
        "scheduler": "fifo",
        "scheduler_opts": "{}",
    }


async def test_a_private_group_is_open_to_whom_it_is_associated_with(api: Api) -> None:
    assert (await ask(api, CREATE, name="gpu", props=MADE))["ok"]
    group = str((await ask(api, '{ groups_by_name(name: "default") { id } }'))[0]["id"])  # type: ignore[index]  # a list
    whom = {
        "domain": ("domain", "String!", "default"),
        "user_group": ("user_group", "UUID!", group),
        "keypair": ("access_key", "String!", api.user.access_key),
    }
    for kind, (name, type_, value) in whom.items():
        types, arguments = f"$g: String!, $w: {type_}", f"scaling_group: $g, {name}: $w"
        link = f"mutation({types}) {{ associate_scaling_group_with_{kind}({arguments}) {{ ok msg }} }}"
        cut = link.replace("associate", "disassociate").replace("UUID!", "String!")  # as the published client has it
        assert await open_to(api, api.user) == ["default"]
        for _ in range(2):
            assert (await ask(api, link, g="gpu", w=value))["ok"]
        assert await open_to(api, api.user) == ["default", "gpu"]
        assert await open_to(api, api.other) == (["default"] if kind == "keypair" else ["default", "gpu"])
        assert not (await ask(api, link, g="nothing", w=value))["ok"]
        assert (await ask(api, cut, g="gpu", w=value))["ok"]
        assert not (await ask(api, cut, g="gpu", w=value))["ok"]
    everything = 'mutation { disassociate_all_scaling_groups_with_domain(domain: "default") { ok msg } }'
    link = 'mutation { associate_scaling_group_with_domain(domain: "default", scaling_group: "gpu") { ok } }'
    assert (await ask(api, link))["ok"]
    assert (await ask(api, everything))["ok"]
    assert await open_to(api, api.user) == ["default"]
