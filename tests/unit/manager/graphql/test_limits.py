"""What one query may ask for."""

from __future__ import annotations

import pytest
from graphql import GraphQLError, parse

from ai.backend.manager.composition.graphql_schema import load_definitions
from ai.backend.manager.graphql.executor import build_schema
from ai.backend.manager.graphql.limits import check_introspection, check_limits, widths_of
from ai.backend.manager.graphql.settings import GraphQLSettings

WIDTHS = widths_of(build_schema(load_definitions(), ()))


def test_depth_and_cost_are_as_the_settings_say() -> None:
    document = parse("query($n: Int!) { user_list(limit: $n, offset: 0) { items { email groups { id } } } }")
    for limits in (GraphQLSettings(), GraphQLSettings(max_depth=4, max_cost=1 + 10 + 20 + 100)):
        check_limits(document, {"n": 10}, limits, WIDTHS)
    with pytest.raises(GraphQLError, match="deeper than 3"):
        check_limits(document, {"n": 10}, GraphQLSettings.model_construct(max_depth=3), WIDTHS)
    with pytest.raises(GraphQLError, match="more than 130"):
        check_limits(document, {"n": 10}, GraphQLSettings(max_cost=130), WIDTHS)
    with pytest.raises(GraphQLError, match="more than 1000"):
        check_limits(document, {}, GraphQLSettings(max_cost=1000), WIDTHS)


def test_every_list_counts() -> None:
    assert {"dependencies", "container_registries", "keypair_resource_policies", "resource_limits"} <= {*WIDTHS}
    assert "items" not in WIDTHS, "counted by its page"
    pages = parse("{ keypairs { compute_sessions { containers { id status agent image } } } }")
    with pytest.raises(GraphQLError, match="more than 50000"):
        check_limits(pages, {}, GraphQLSettings(), WIDTHS)
    check_limits(parse("{ keypairs { compute_sessions { id status } } }"), {}, GraphQLSettings(), WIDTHS)


def test_questions_about_the_schema_are_found_anywhere() -> None:
    check_introspection(parse("{ a: __typename domains { name } }"))
    for text in (
        "{ __schema { types { name } } }",
        'query A { domains { name } } query B { x: __type(name: "User") { name } }',
        "{ ...F } fragment F on Query { ... on Query { __schema { types { name } } } }",
    ):
        with pytest.raises(GraphQLError, match="schema"):
            check_introspection(parse(text))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{" + " user { groups { id name } email }" * 190 + "}", "'user' more than 8 times"),
        ("{" + (" user {" + " groups { id }" * 5 + "}") * 2 + "}", "'groups' more than 8 times"),
        ("{ user { email } } fragment F on Query {" + " user { email }" * 9 + "}", "'user' more than 8 times"),
        ("{ user {" + " ...F" * 9 + " } } fragment F on User { email }", "'email' more than 8 times"),
        ("{ user(" + " ".join(f"a{i}: 1" for i in range(65)) + ") { email } }", "more than 64 values"),
        ("{ user { email" + " @x" * 65 + " } }", "more than 64 values"),
        ("query(" + " ".join(f"$a{i}: Int" for i in range(65)) + ") { user { email } }", "more than 64 values"),
        (
            "mutation { create_domain(name: {a: [{" + " ".join(f"a{i}: 1" for i in range(65)) + "}]}) { ok } }",
            "more than 64 values",
        ),
        (" ".join(f"query q{i} {{ user {{ email }} }}" for i in range(65)), "more than 64 operations"),
    ],
)
def test_what_validation_would_compare_for_long_is_refused_before_it(text: str, problem: str) -> None:
    with pytest.raises(GraphQLError, match=problem):
        check_limits(parse(text), {}, GraphQLSettings(), WIDTHS)


def test_operations_and_aliases_do_not_count_together() -> None:
    operations = " ".join(f"query q{i} {{ user {{ email }} }}" for i in range(20))
    check_limits(parse(operations), {}, GraphQLSettings(), WIDTHS)
    aliases = " ".join(f"a{i}: user {{ email }}" for i in range(100))
    check_limits(parse("{" + aliases + "}"), {}, GraphQLSettings(), WIDTHS)
    check_limits(parse("{ user { ...Missing } }"), {}, GraphQLSettings(), WIDTHS)
