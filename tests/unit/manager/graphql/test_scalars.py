"""What values the scalar types take, and which declared types of variables fit."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from graphql import GraphQLError, parse, validate

from ai.backend.manager.composition.graphql_schema import load_definitions
from ai.backend.manager.graphql import scalars
from ai.backend.manager.graphql.executor import build_schema
from ai.backend.manager.graphql.variables import adapt_variable_types

SCHEMA = build_schema(load_definitions(), ())


@pytest.mark.parametrize("value", [0, -1, 2**53 - 1, -(2**53) + 1, "12", "-3"])
def test_whole_numbers(value: Any) -> None:
    assert scalars.parse_whole_number(value) == int(value)


@pytest.mark.parametrize("value", ["abc", "", "-", "1.5", "9" * 30, [1], {}, True, 1.5, 2**53, -(2**53), None, "²"])
def test_what_is_no_whole_number(value: Any) -> None:
    with pytest.raises(GraphQLError, match="whole number"):
        scalars.parse_whole_number(value)


@pytest.mark.parametrize(
    "value", ["[" * 3000, "[" * 40 + "]" * 40, "{", "NaN", "1e999", 5, ["{}"], "[" + "1," * 40_000]
)
def test_what_is_no_json(value: Any) -> None:
    with pytest.raises(GraphQLError):
        scalars.parse_json_text(value)
    if isinstance(value, str):
        with pytest.raises(GraphQLError):
            scalars.parse_json_value(value)


def test_json() -> None:
    assert scalars.parse_json_text('{"a": 1}') == '{"a": 1}'
    assert scalars.parse_json_value('["a"]') == scalars.parse_json_value(["a"]) == ["a"]
    nested: list[Any] = []
    for _ in range(2000):
        nested = [nested]
    with pytest.raises(GraphQLError, match="deeper"):
        scalars.parse_json_value(nested)


@pytest.mark.parametrize("value", ["x", 5, None, [], {}, 1.5])
def test_what_is_no_uuid(value: Any) -> None:
    with pytest.raises(GraphQLError, match="not a UUID"):
        scalars.parse_uuid(value)
    assert scalars.parse_uuid("0" * 32) == UUID(int=0)


@pytest.mark.parametrize(
    "text",
    [
        "query($id: String!) { group(id: $id) { name } }",
        "query($id: String) { user_from_uuid(user_id: $id) { email } }",
        "query($id: UUID) { user_from_uuid(user_id: $id) { email } }",
        "query($g: String) { users(group_id: $g) { email } }",
        "query($g: String) { vfolder_list(limit: 1, offset: 0, group_id: $g) { total_count } }",
        "query($g: UUID) { compute_session_list(limit: 1, offset: 0, group_id: $g) { total_count } }",
        'mutation($g: String!) { associate_scaling_group_with_user_group(scaling_group: "a", user_group: $g) { ok } }',
        'mutation($g: UUID!) { disassociate_scaling_group_with_user_group(user_group: $g, scaling_group: "a") { ok } }',
        "mutation($g: String!) { disassociate_all_scaling_groups_with_group(user_group: $g) { ok } }",
        'mutation($p: ScalingGroupInput!) { create_scaling_group(name: "a", props: $p) { ok } }',
        'mutation($h: [String]) { create_domain(name: "a", props: {allowed_vfolder_hosts: $h}) { ok } }',
        "query A($id: String!) { ...F } fragment F on Query { group(id: $id) { name } }",
    ],
)
def test_variables_of_types_that_the_manual_declares(text: str) -> None:
    document = parse(text)
    assert validate(SCHEMA, document)
    assert not validate(SCHEMA, adapt_variable_types(SCHEMA, document))


@pytest.mark.parametrize(
    "text",
    [
        "query($n: String!) { user_list(limit: $n, offset: 0) { total_count } }",
        "query($id: Boolean!) { group(id: $id) { name } }",
        "query($id: String) { group(id: $id) { name } }",
        "query($id: String!) { group(id: $id) { name } user(email: $id) { email } }",
    ],
)
def test_other_types_stay_refused(text: str) -> None:
    assert validate(SCHEMA, adapt_variable_types(SCHEMA, parse(text)))
