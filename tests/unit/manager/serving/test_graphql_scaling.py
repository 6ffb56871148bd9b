"""The rules of autoscaling in GraphQL, by the names of published clients."""

from __future__ import annotations

from typing import Any, cast

from graphql import graphql

from ai.backend.manager.access.caller import Caller
from ai.backend.manager.composition.graphql_schema import load_definitions
from ai.backend.manager.graphql.context import Context
from ai.backend.manager.graphql.executor import build_schema
from ai.backend.manager.graphql.resolvers import bindables_of
from ai.backend.manager.serving.graphql_scaling import ScalingResolvers
from ai.backend.manager.serving.scaling import ScalingService
from tests.unit.manager.serving.test_scaling import started
from tests.unit.manager.serving.test_service import STRANGER
from tests.unit.manager.serving.world import OWNER

CREATE = """mutation($endpoint: String!, $props: EndpointAutoScalingRuleInput!) {
  create_endpoint_auto_scaling_rule_node(endpoint: $endpoint, props: $props) { ok msg rule { row_id } } }"""
MODIFY = """mutation($id: String!, $props: ModifyEndpointAutoScalingRuleInput!) {
  modify_endpoint_auto_scaling_rule_node(id: $id, props: $props) { ok msg rule { threshold comparator } } }"""
DELETE = "mutation($id: String!) { delete_endpoint_auto_scaling_rule_node(id: $id) { ok msg } }"
LIST = """query($endpoint: String!) { endpoint_auto_scaling_rule_nodes(endpoint: $endpoint) {
  edges { node { id row_id metric_source metric_name threshold comparator step_size cooldown_seconds min_replicas
  max_replicas last_triggered_at } } count } }"""
ONE = "query($id: String!) { endpoint_auto_scaling_rule_node(id: $id) { metric_name } }"
PROPS = {
    "metric_source": "PROXY",
    "metric_name": "load",
    "threshold": "2.5",
    "comparator": "GREATER_THAN",
    "step_size": 1,
    "cooldown_seconds": 60,
    "max_replicas": 3,
}


class Trail:
    """Drops what is audited."""

    async def record(self, *_: Any, **__: Any) -> None:
        return None


async def ask(scaling: ScalingService | None, text: str, caller: Caller = OWNER, **variables: Any) -> dict[str, Any]:
    schema = build_schema(load_definitions(), bindables_of([ScalingResolvers(scaling)]))
    context = Context(caller=caller, audit=Trail())
    result = await graphql(schema, text, context_value=context, variable_values=variables)
    assert result.errors is None
    reply = cast("dict[str, Any]", result.data)
    return cast("dict[str, Any]", next(iter(reply.values())))


async def test_a_rule_is_made_read_changed_and_removed() -> None:
    world, scaling = await started()
    endpoint = str(world.endpoint_id)
    made = await ask(scaling, CREATE, endpoint=endpoint, props=PROPS)
    assert (made["ok"], made["msg"]) == (True, "success")
    rule_id = made["rule"]["row_id"]
    listed = await ask(scaling, LIST, endpoint=endpoint)
    expected = {**PROPS, "id": rule_id, "row_id": rule_id, "min_replicas": None, "last_triggered_at": None}
    assert (listed["count"], listed["edges"][0]["node"]) == (1, expected)
    props = {"threshold": "3", "comparator": "LESS_THAN_OR_EQUAL"}
    changed = await ask(scaling, MODIFY, id=rule_id, props=props)
    assert changed["rule"] == props
    assert (await ask(scaling, ONE, id=rule_id)) == {"metric_name": "load"}
    assert (await ask(scaling, ONE, caller=STRANGER, id=rule_id)) is None
    assert (await ask(scaling, DELETE, caller=STRANGER, id=rule_id))["ok"] is False
    assert (await ask(scaling, DELETE, id=rule_id))["ok"] is True
    assert (await ask(scaling, DELETE, id=rule_id))["ok"] is False
    assert (await world.service()).rules == ()


async def test_wrong_rules_are_refused_with_the_reason() -> None:
    world, scaling = await started()
    endpoint = str(world.endpoint_id)
    for changes, reason in (
        ({"threshold": "many"}, "threshold is a number"),
        ({"metric_source": "PROMETHEUS"}, "no server of Prometheus"),
        ({"metric_name": "cpu_util"}, "no metric"),
        ({"step_size": 0}, "step_size"),
        ({"step_size": 2_000}, "step_size"),
        ({"cooldown_seconds": -1}, "cooldown_seconds"),
        ({"min_replicas": -1}, "min_replicas"),
    ):
        reply = await ask(scaling, CREATE, endpoint=endpoint, props={**PROPS, **changes})
        assert reply["ok"] is False, changes
        assert reason in reply["msg"]
    assert (await ask(scaling, CREATE, endpoint="x", props=PROPS))["ok"] is False
    assert (await ask(None, CREATE, endpoint=endpoint, props=PROPS))["ok"] is False
    assert (await ask(None, LIST, endpoint=endpoint))["count"] == 0
