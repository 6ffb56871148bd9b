"""The OpenAPI document is whole: every reference leads somewhere, every endpoint says what it does."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from graphql import build_schema
from tools.api_pages import graphql_page, rest_page

from ai.backend.infra.http.errors import problem_classes
from ai.backend.manager.composition.api_reference import document, openapi_json


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return document()


def test_every_reference_leads_somewhere(told: dict[str, Any]) -> None:
    found = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(told)))
    assert found
    assert found <= told["components"]["schemas"].keys()


def test_every_reply_has_its_fields(told: dict[str, Any]) -> None:
    texts = {"text/plain", "text/html", "text/event-stream", "multipart/mixed", "application/yaml"}
    for path, methods in told["paths"].items():
        for operation in methods.values():
            assert "default" not in operation["responses"], path
            for status, response in operation["responses"].items():
                if "$ref" in response or status in ("101", "204", "304"):
                    continue
                for media_type, content in response["content"].items():
                    schema = content["schema"]
                    is_declared = schema.get("$ref") or schema.get("type") in ("array", "object") or "anyOf" in schema
                    assert is_declared or media_type in texts or path == "/user-config/bootstrap-script", path


def test_a_body_may_be_null_where_the_server_drops_null(told: dict[str, Any]) -> None:
    schemas = told["components"]["schemas"]
    assert {"type": "null"} in schemas["CreateSessionBody"]["properties"]["clusterSize"]["anyOf"]
    assert "anyOf" not in schemas["CreateSessionBody"]["properties"]["image"]
    assert told["paths"]["/session"]["post"]["requestBody"]["required"]
    assert not told["paths"]["/resource/check-presets"]["post"]["requestBody"]["required"]


def test_every_operation_says_what_it_does(told: dict[str, Any]) -> None:
    ids = []
    for path, methods in told["paths"].items():
        for operation in methods.values():
            assert operation["summary"].endswith((".", ";")) or "." in operation["summary"], path
            declared = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
            assert declared == set(re.findall(r"\{(\w+)\}", path))
            ids.append(operation["operationId"])
    assert len(ids) == len(set(ids))


def test_only_these_need_no_signature(told: dict[str, Any]) -> None:
    anonymous = {path for path, methods in told["paths"].items() for o in methods.values() if not o["security"]}
    by_password = {"/auth/authorize", "/auth/update-password-no-auth", "/auth/signup", "/auth/verify-email"}
    by_password |= {"/totp/anon", "/totp/anon/verify"}
    by_service = {"/auth/providers", "/auth/redirect", "/auth/redirect/finish"}
    by_token = {"/metrics/targets", "/metrics/kernels", "/auth/authorize-token"}
    metrics = {"/metrics", "/metrics/agents/{agent}"}
    assert anonymous == {"/", "/{version}", "/livez", "/readyz", *metrics, *by_token, *by_password, *by_service}


def test_other_spellings_are_told(told: dict[str, Any]) -> None:
    assert told["paths"]["/session"]["post"]["x-aliases"]["clientSessionToken"] == "name"


def test_the_page_names_every_endpoint_and_problem(told: dict[str, Any]) -> None:
    page = rest_page()
    for path, methods in told["paths"].items():
        for method in methods:
            assert f"`{method.upper()} {path}`" in page
    for cls in problem_classes():
        assert f"| `{cls.code}` |" in page


def test_the_references_are_deterministic() -> None:
    assert openapi_json() == openapi_json()
    assert rest_page() == rest_page()


def test_the_schema_on_the_page_is_a_schema() -> None:
    text = graphql_page().partition("```graphql\n")[2].partition("```")[0]
    schema = build_schema(text)
    assert schema.query_type is not None
    assert "compute_session_list" in schema.query_type.fields
