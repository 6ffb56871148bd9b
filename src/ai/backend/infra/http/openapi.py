"""Generates and serves the OpenAPI document of a server's endpoints."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import structs

from ai.backend.common import errors
from ai.backend.infra.http import errors as http_errors
from ai.backend.infra.http.decode import struct_in
from ai.backend.infra.http.routes import SAFE_METHODS, Call, Endpoint, Nothing, OwnerKey, route

_COMPONENT_REF = "#/components/schemas/{name}"
_PROBLEM = {
    "type": "object",
    "description": "RFC 7807; `msg` repeats `detail`, `data` carries the evidence, for bad input field by field.",
    "required": ["type", "title", "status", "detail", "msg"],
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
_PROBLEMS_OF_ALL = (
    *(errors.InvalidInput, http_errors.BodyTooSlow, http_errors.PayloadTooLarge, http_errors.UnsupportedMediaType),
    *(errors.InternalError, errors.Unavailable),
)
_PROBLEMS_OF_SIGNED = (errors.AuthenticationFailed, errors.Forbidden)
_PROBLEMS_OF_CHANGES = (http_errors.ClientTokenReused, http_errors.OutcomeUnknown)
_COUNT = {"required": True, "schema": {"type": "string", "pattern": "^[0-9]+$"}}
_HEADERS: dict[str, Any] = {
    "X-Request-ID": {"required": True, "schema": {"type": "string", "minLength": 1}},
    "X-RateLimit-Limit": _COUNT,
    "X-RateLimit-Remaining": _COUNT,
    "X-RateLimit-Window": _COUNT,
    "WWW-Authenticate": {"required": True, "schema": {"const": "BackendAI"}},
    "Retry-After": _COUNT,
    "X-BackendAI-Replayed": {"description": "`true` for the repetition of a call.", "schema": {"const": "true"}},
}


def problem_statuses(endpoint: Endpoint) -> frozenset[int]:
    """Returns the statuses of the problems that an endpoint declares, and the statuses that the server itself can
    return."""
    problems: list[type[errors.BackendError]] = [*_PROBLEMS_OF_ALL, *endpoint.problems]
    if endpoint.auth:
        problems += _PROBLEMS_OF_SIGNED
        problems += () if endpoint.method in SAFE_METHODS else _PROBLEMS_OF_CHANGES
    if endpoint.limited or endpoint.auth:
        problems.append(errors.RateLimitExceeded)
    if "{" in endpoint.path:
        problems.append(errors.NotFound)
    return frozenset(int(http_errors.status_of(problem)) for problem in problems)


SIGNATURE_SCHEME = {
    "signature": {
        "type": "apiKey",
        "in": "header",
        "name": "Authorization",
        "description": "BackendAI signMethod=HMAC-SHA256, credential=<access key>:<signature>",
    }
}


def openapi_document(
    endpoints: Sequence[Endpoint], *, title: str, version: str, scheme: Mapping[str, Any] = SIGNATURE_SCHEME
) -> dict[str, Any]:
    """Returns an OpenAPI 3.1 document of a server's endpoints.

    ``scheme`` is the security scheme of endpoints that are not anonymous.
    """
    bodies = {schema for endpoint in endpoints for schema in _structs_in(endpoint.body)}
    schemas: list[Any] = sorted(bodies, key=lambda schema: (schema.__module__, schema.__name__))
    for endpoint in endpoints:
        if endpoint.query is not Nothing:
            schemas.append(endpoint.query)
        if endpoint.reply is not None:
            schemas.append(endpoint.reply)
    unique_schemas = list(dict.fromkeys(schemas))
    reference_objects, components = msgspec.json.schema_components(unique_schemas, ref_template=_COMPONENT_REF)
    for component in components.values():
        if description := component.get("description"):
            component["description"] = inspect.cleandoc(description)
    schema_refs = dict(zip(unique_schemas, reference_objects, strict=True))
    for schema in bodies:
        _allow_nulls(schema, components[_component_name(schema_refs[schema])])
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        # OpenAPI has no REPORT or other methods of WebDAV; none is declared, they are read as GET.
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(
            endpoint, schema_refs, components, list(scheme)
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": {**components, "Problem": _PROBLEM},
            "headers": _HEADERS,
            "responses": _problem_responses(),
            "securitySchemes": dict(scheme),
        },
    }


def _operation(
    endpoint: Endpoint, schema_refs: dict[Any, Any], components: dict[str, Any], schemes: Sequence[str]
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{endpoint.tag}.{endpoint.name}.{endpoint.path.strip('/').replace('/', '.') or 'root'}",
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "security": [{name: [] for name in schemes}] if endpoint.auth else [],
        "parameters": [*_path_parameters(endpoint.path), *_query_parameters(endpoint, schema_refs, components)],
        "responses": {
            **{str(status): _success_response(endpoint, status, schema_refs) for status in endpoint.statuses},
            **{
                str(status): {"$ref": f"#/components/responses/Problem{status}"}
                for status in sorted(problem_statuses(endpoint) - {*endpoint.statuses})
            },
        },
    }
    if endpoint.kind == "upload":
        files_schema = {"type": "array", "minItems": 1, "items": {"type": "string", "format": "binary"}}
        form_schema = {"type": "object", "required": ["src"], "properties": {"src": files_schema}}
        operation["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": form_schema}}}
    elif endpoint.body is not Nothing:
        operation["requestBody"] = {
            "required": any(field_info.required for field_info in structs.fields(endpoint.body)),
            "content": {"application/json": {"schema": schema_refs[endpoint.body]}},
        }
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
    properties = components[_component_name(schema_refs[endpoint.query])]["properties"]
    for field_info in structs.fields(endpoint.query):
        yield {
            "name": field_info.encode_name,
            "in": "query",
            "required": field_info.required,
            "schema": _without_null(properties[field_info.encode_name]),
        }


def _success_response(endpoint: Endpoint, status: int, schema_refs: dict[Any, Any]) -> dict[str, Any]:
    if endpoint.kind == "socket":
        return {"description": "Upgraded to a WebSocket."}
    header_names = ["X-Request-ID"]
    if endpoint.limited or endpoint.auth:
        header_names += ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Window"]
    if endpoint.auth and endpoint.method not in SAFE_METHODS:
        header_names.append("X-BackendAI-Replayed")
    response: dict[str, Any] = {"headers": _header_refs(*header_names)}
    if status == 304:
        return {**response, "description": "Unchanged, without a body."}
    if status == 204:
        return {**response, "description": "Done, without a body."}
    if endpoint.kind == "stream":
        text_content = {"text/event-stream": {"schema": {"type": "string"}}}
        return {**response, "description": "A stream of events.", "content": text_content}
    schema = schema_refs[endpoint.reply] if endpoint.reply is not None else {"type": "string"}
    content = {media_type: {"schema": schema} for media_type in endpoint.produces}
    return {**response, "description": "Done.", "content": content}


def _problem_responses() -> dict[str, Any]:
    """Returns a response for each problem status. Each response names the codes of its problems."""
    codes_of_status: dict[HTTPStatus, list[str]] = {}
    for error_class, status in http_errors.problem_classes().items():
        codes_of_status.setdefault(status, []).append(f"`{error_class.code}`")
    content = {http_errors.PROBLEM_TYPE: {"schema": {"$ref": _COMPONENT_REF.format(name="Problem")}}}
    header_of_status = {HTTPStatus.UNAUTHORIZED: "WWW-Authenticate", HTTPStatus.TOO_MANY_REQUESTS: "Retry-After"}
    return {
        f"Problem{int(status)}": {
            "description": f"{status.phrase}: {', '.join(dict.fromkeys(code_names))}.",
            "headers": _header_refs("X-Request-ID", *filter(None, [header_of_status.get(status)])),
            "content": content,
        }
        for status, code_names in sorted(codes_of_status.items())
    }


def _header_refs(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _structs_in(schema: type[msgspec.Struct]) -> Iterable[type[msgspec.Struct]]:
    """Yields the struct of a body and the structs in its fields. The server drops nulls in these structs."""
    if schema is not Nothing:
        yield schema
    for field_info in structs.fields(schema):
        inner_schema = struct_in(field_info.type)
        if inner_schema is not None:
            yield from _structs_in(inner_schema)


def _component_name(reference: dict[str, str]) -> str:
    return reference["$ref"].rpartition("/")[2]


def _allow_nulls(schema: type[msgspec.Struct], component: dict[str, Any]) -> None:
    """Adds null to the optional fields of a body. A null there means absent (spec 03-07, "JSON Value Types")."""
    for field_info in structs.fields(schema):
        field_schema = component["properties"][field_info.encode_name]
        alternative_schemas = field_schema.get("anyOf", [field_schema])
        if not field_info.required and field_schema and {"type": "null"} not in alternative_schemas:
            component["properties"][field_info.encode_name] = {"anyOf": [*alternative_schemas, {"type": "null"}]}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of a query parameter without null, because a query string has no null."""
    alternative_schemas = [
        alternative_schema for alternative_schema in schema.get("anyOf", ()) if alternative_schema != {"type": "null"}
    ]
    if not alternative_schemas:
        return schema
    other_keywords = {name: value for name, value in schema.items() if name != "anyOf" and value is not None}
    return (
        {**other_keywords, "anyOf": alternative_schemas}
        if len(alternative_schemas) > 1
        else {**other_keywords, **alternative_schemas[0]}
    )


@dataclass(eq=False)
class OpenApiApi:
    """Serves the OpenAPI document that describes the server's other endpoints."""

    endpoints: Sequence[Endpoint]
    _: KW_ONLY
    title: str
    version: str
    scheme: Mapping[str, Any] = field(default_factory=lambda: SIGNATURE_SCHEME)
    _encoded: msgspec.Raw | None = field(default=None, init=False)

    @route("GET", "/spec/openapi", auth=False)
    @route("GET", "/openapi.json", auth=False)
    async def openapi(self, call: Call) -> msgspec.Raw:
        """Returns this API as an OpenAPI document."""
        if self._encoded is None:
            document = openapi_document(self.endpoints, title=self.title, version=self.version, scheme=self.scheme)
            self._encoded = msgspec.Raw(msgspec.json.encode(document))
        return self._encoded
