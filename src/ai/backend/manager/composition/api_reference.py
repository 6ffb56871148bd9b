"""Builds the OpenAPI document and the GraphQL definitions of the manager, without a running manager."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from ai.backend.infra.http.openapi import openapi_document
from ai.backend.infra.telemetry import Metrics
from ai.backend.manager.composition.app import api_endpoints
from ai.backend.manager.composition.services import Services
from ai.backend.manager.config.settings import ManagerSettings


class _UnboundService:
    """Stands for each service of a manager while the API reference is built; none of its methods may be called."""

    settings = ManagerSettings()

    def __getattr__(self, name: str) -> _UnboundService:
        return self

    def __call__(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError("a reference calls nothing")


def document() -> dict[str, Any]:
    """Returns the OpenAPI document of the manager.

    The document has no version of the software, so that releases do not change it.
    """
    services = cast(Services, _UnboundService())
    endpoints = api_endpoints(services, Metrics("manager"))
    return openapi_document(endpoints, title="Manager API", version="v7.20230615")


def openapi_json() -> str:
    return msgspec.json.format(msgspec.json.encode(document(), order="deterministic"), indent=1).decode() + "\n"


def graphql_definitions() -> str:
    """Returns the GraphQL definitions of all features, merged into one schema."""
    from graphql import print_schema

    from ai.backend.manager.composition.graphql_schema import load_definitions
    from ai.backend.manager.graphql.executor import build_schema

    return print_schema(build_schema(load_definitions(), ()))
