"""Generates and serves the OpenAPI document of a server's endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import msgspec
from msgspec import structs

from ai.backend.infra.http.errors import PROBLEM_TYPE
from ai.backend.infra.http.routes import Call, Endpoint, Nothing, OwnerKey, route

_COMPONENT_REF = "#/components/schemas/{name}"
_PROBLEM_RESPONSE = {
    "type": "object",
    "description": "RFC 7807; `msg` repeats `detail`, `data` carries the evidence, for bad input field by field.",
    "required": ["type", "title", "status"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "msg": {"type": "string"},
        "data": {"type": "object"},
        "request_id": {"type": "string"},
    },
}


def openapi_document(endpoints: Sequence[Endpoint], *, title: str, version: str) -> dict[str, Any]:
    """Returns an OpenAPI 3.1 document."""
    schemas: list[Any] = []
    for endpoint in endpoints:
        schemas += [schema for schema in (endpoint.body, endpoint.query) if schema is not Nothing]
        if endpoint.reply is not None:
            schemas.append(endpoint.reply)
    unique_schemas = list(dict.fromkeys(schemas))
    references, components = msgspec.json.schema_components(unique_schemas, ref_template=_COMPONENT_REF)
    schema_refs = dict(zip(unique_schemas, references, strict=True))
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        # OpenAPI has no REPORT or other methods of WebDAV; none is declared, they are read as GET.
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, schema_refs, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": {**components, "Problem": _PROBLEM_RESPONSE},
            "securitySchemes": {
                "signature": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "BackendAI signMethod=HMAC-SHA256, credential=<access key>:<signature>",
                }
            },
        },
    }


def _operation(endpoint: Endpoint, schema_refs: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{endpoint.tag}.{endpoint.name}.{endpoint.path.strip('/').replace('/', '.') or 'root'}",
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "security": [{"signature": []}] if endpoint.auth else [],
        "parameters": [*_path_parameters(endpoint.path), *_query_parameters(endpoint, schema_refs, components)],
        "responses": {
            **{str(status): _success_response(endpoint, status, schema_refs) for status in endpoint.statuses},
            "default": {
                "description": "A problem.",
                "content": {PROBLEM_TYPE: {"schema": {"$ref": _COMPONENT_REF.format(name="Problem")}}},
            },
        },
    }
    if endpoint.kind == "upload":
        operation["requestBody"] = {"content": {"multipart/form-data": {"schema": {"type": "object"}}}}
    elif endpoint.body is not Nothing:
        operation["requestBody"] = {"content": {"application/json": {"schema": schema_refs[endpoint.body]}}}
        if endpoint.body_aliases:
            operation["x-aliases"] = dict(endpoint.body_aliases)
    return operation


def _path_parameters(path: str) -> Iterable[dict[str, Any]]:
    for segment in path.split("/"):
        if segment.startswith("{"):
            yield {"name": segment[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}


def _query_parameters(
    endpoint: Endpoint, schema_refs: dict[Any, Any], components: dict[str, Any]
) -> Iterable[dict[str, Any]]:
    if endpoint.owner_key not in (None, OwnerKey.REFUSED):
        yield {"name": "owner_access_key", "in": "query", "required": False, "schema": {"type": "string"}}
    if endpoint.query is Nothing:
        return
    name = schema_refs[endpoint.query]["$ref"].rpartition("/")[2]
    properties = components[name]["properties"]
    for field_info in structs.fields(endpoint.query):
        yield {
            "name": field_info.encode_name,
            "in": "query",
            "required": field_info.required,
            "schema": properties[field_info.encode_name],
        }


def _success_response(endpoint: Endpoint, status: int, schema_refs: dict[Any, Any]) -> dict[str, Any]:
    if endpoint.kind == "socket":
        return {"description": "Upgraded to a WebSocket."}
    if status == 204:
        return {"description": "Done, without a body."}
    if endpoint.kind == "stream":
        return {"description": "A stream of events.", "content": {"text/event-stream": {}}}
    schema = schema_refs[endpoint.reply] if endpoint.reply is not None else {}
    return {"description": "Done.", "content": {media_type: {"schema": schema} for media_type in endpoint.produces}}


@dataclass(eq=False)
class OpenApiApi:
    """Serves the document of the other endpoints."""

    endpoints: Sequence[Endpoint]
    _: KW_ONLY
    title: str
    version: str
    _encoded: msgspec.Raw | None = field(default=None, init=False)

    @route("GET", "/spec/openapi", auth=False)
    @route("GET", "/openapi.json", auth=False)
    async def openapi(self, call: Call) -> msgspec.Raw:
        """Returns this API as an OpenAPI document."""
        if self._encoded is None:
            document = openapi_document(self.endpoints, title=self.title, version=self.version)
            self._encoded = msgspec.Raw(msgspec.json.encode(document))
        return self._encoded
