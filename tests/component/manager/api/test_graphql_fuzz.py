"""Every argument of every GraphQL field takes hostile values of each role: there is a reply, and never an internal
error (issue 13:8)."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import graphql
import msgspec
import pytest

from ai.backend.common.states import UserRole
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.composition.graphql_schema import load_schema
from ai.backend.manager.graphql.context import Context
from ai.backend.manager.graphql.executor import Executor
from ai.backend.manager.graphql.settings import GraphQLSettings
from tests.component.manager.conftest import Cluster
from tests.component.manager.fakes import FakeAgent

HOSTILE: tuple[Any, ...] = (
    None, "", " ", "x", "é\u202e🏴", "\x00", "a\x00b", "..", "../../etc/passwd", "%", "'; DROP TABLE users; --", "{",
    "[]", "{}", "null", "[" * 3000, '{"a": ' * 40 + "1" + "}" * 40, '{"mem": "999999999999y"}', '{"cpu": "1e400"}',
    '{"cpu": [1]}', '{"cpu": NaN}', '{"": {}}', '{"scheduler": 1, "x": 99999999999999999999999999}', '["a", 1, null]',
    "NaN", "Infinity", "999999999999y", "1e999", "-1", "9" * 400, "a" * 20_000, "0" * 32, "default",
    'name == "\x00"', "-name,-name", "(" * 100,
    0, 1, -1, 2**31 - 1, 2**31, 2**53 - 1, 2**53, 2**63, 2**64, -(2**63) - 1, 10**400, 1.5, 1e300, float("nan"),
    True, False, [], [None], ["x"], [1], ["\x00"], [[]], ["10.0.0.0/8"] * 65, {}, {"x": 1}, {"local:volume1": "x"},
    {"\x00": ["create-vfolder"]},
)  # fmt: skip
"""Values of each type, in and out of the ranges of the schema and of the database."""
SCALARS: dict[str, Any] = {"Int": 1, "BigInt": 1, "Boolean": True, "Float": 1.0, "JSONString": "{}", "VFolderHosts": {}}
ROLES = (UserRole.USER, UserRole.ADMIN, UserRole.MONITOR, UserRole.SUPERADMIN)


class NoAudit:
    async def record(self, *_: Any, **__: Any) -> None: ...


def _plain(kind: Any, name: str) -> Any:
    """A value that the type takes."""
    if graphql.is_non_null_type(kind):
        return _plain(kind.of_type, name)
    if graphql.is_list_type(kind):
        return []
    if graphql.is_input_object_type(kind):
        required = {key: field.type for key, field in kind.fields.items() if graphql.is_non_null_type(field.type)}
        return {key: _plain(inner, key) for key, inner in required.items()}
    if kind.name in ("UUID", "ID"):
        return "00000000-0000-0000-0000-000000000001"
    return SCALARS.get(kind.name, {"email": "fuzz@local", "password": "a long password"}.get(name, "fuzz"))


def _selection(kind: graphql.GraphQLType, depth: int = 1) -> str:
    """Every field that takes no argument, ``depth`` objects deep."""
    named = graphql.get_named_type(kind)
    if not graphql.is_object_type(named):
        return ""
    types = {name: graphql.get_named_type(field.type) for name, field in named.fields.items()}
    inner = [name for name, kind in types.items() if not graphql.is_composite_type(kind)]
    deeper = {name: field for name, field in named.fields.items() if name not in inner and depth}
    chosen = [*inner, *(name + _selection(field.type, depth - 1) for name, field in deeper.items())]
    return "{ " + " ".join(chosen) + " }"


def _calls(schema: graphql.GraphQLSchema) -> Iterator[tuple[str, dict[str, Any], tuple[str, ...]]]:
    """Query, variables of harmless values, and the path of the value to be replaced."""
    for operation in (schema.query_type, schema.mutation_type):
        assert operation is not None
        for name, field in operation.fields.items():
            declared = ", ".join(f"${argument}: {value.type}" for argument, value in field.args.items())
            given = ", ".join(f"{argument}: ${argument}" for argument in field.args)
            word = "mutation" if operation is schema.mutation_type else "query"
            head, call = (f"({declared})", f"({given})") if given else ("", "")
            text = f"{word} Fuzz{head} {{ {name}{call} {_selection(field.type)} }}"
            required = {key: value.type for key, value in field.args.items() if graphql.is_non_null_type(value.type)}
            variables = {key: _plain(kind, key) for key, kind in required.items()}
            for argument, value in field.args.items():
                yield text, variables, (argument,)
                kind = graphql.get_named_type(value.type)
                if graphql.is_input_object_type(kind):
                    yield from ((text, variables, (argument, key)) for key in kind.fields)


AGENTS = "agent_list(limit: 1, offset: 0) { items { compute_containers(status: $status) { id } } }"
INNER_FIELDS: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
    ("query Fuzz($status: String) { keypair { compute_sessions(status: $status) { id } } }", {}, ("status",)),
    (f"query Fuzz($status: String) {{ {AGENTS} }}", {}, ("status",)),
)


def _with(variables: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    head, *rest = path
    return {**variables, head: _with(variables.get(head, {}), tuple(rest), value) if rest else value}


async def _caller(cluster: Cluster, role: UserRole) -> Caller:
    services = cluster.manager.services
    _, pair = await services.users.create_user(cluster.admin, f"fuzz-{role}@local", "a long password", {"role": role})
    credentials = await services.identity.credentials(pair.access_key)
    assert credentials is not None
    return credentials.caller


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
async def test_hostile_values_have_a_reply(cluster: Cluster, role: UserRole, caplog: pytest.LogCaptureFixture) -> None:
    caller = await _caller(cluster, role)
    schema = load_schema(cluster.manager.services)
    executor = Executor(GraphQLSettings(max_cost=10**9), schema)
    caplog.set_level(logging.ERROR, "ai.backend")
    rounds = itertools.cycle(range(4))
    failed: list[str] = []
    await cluster.join(FakeAgent())
    for text, variables, path in (*_calls(schema), *INNER_FIELDS):
        own = next(rounds)
        for number, value in enumerate(HOSTILE):
            if role is not UserRole.SUPERADMIN and number % 4 != own:
                continue  # the others see a part of what superadmins see; together they take each value
            reply = await executor.execute(text, _with(variables, path, value), None, Context(caller, NoAudit()))
            msgspec.json.encode(reply)
            if any(error.get("extensions", {}).get("code") == "internal-error" for error in reply.get("errors", ())):
                failed.append(f"{text[:60]} {path} {str(value)[:40]!r}: {caplog.records[-1].exc_info}")
    for text, variables, _ in _calls(schema):  # what was stored can be read, and the calls are valid ones
        if text.startswith("query"):
            reply = await executor.execute(text, variables, None, Context(caller, NoAudit()))
            codes = [error.get("extensions", {}).get("code") for error in reply.get("errors", ())]
            assert not {None, "internal-error"} & {*codes}, (text, reply)
    assert not failed, "\n".join(failed)
