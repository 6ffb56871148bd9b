"""The generated references of the API: a page for people, a document for tools (`python -m tools.docs`)."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from ai.backend.infra.http.openapi import openapi_document, reference_page
from ai.backend.infra.telemetry import Metrics
from ai.backend.manager.api.app import ApiOptions, api_endpoints
from ai.backend.manager.services.bundle import Services

_HEAD = "<!-- generated from the route declarations by ai.backend.manager.api.reference; do not edit -->\n\n"


class _Unbound:
    """Stands for a service: endpoints are bound to it and never called."""

    def __getattr__(self, name: str) -> _Unbound:
        return self

    def __call__(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError("a reference calls nothing")


def document() -> dict[str, Any]:
    """The OpenAPI document of the manager, without a version of the software, so that releases do not change it."""
    services = cast(Services, _Unbound())
    endpoints = api_endpoints(services, Metrics("manager"), ApiOptions())
    return openapi_document(endpoints, title="Manager API", version="v7.20230615")


def openapi_json() -> str:
    return msgspec.json.format(msgspec.json.encode(document(), order="deterministic"), indent=1).decode() + "\n"


def rest_page() -> str:
    return _HEAD + reference_page(document(), title="REST reference of the manager")
