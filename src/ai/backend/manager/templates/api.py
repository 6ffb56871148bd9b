"""REST routes of templates, and of sessions created from them (spec 03-11, client wire contract 2.1.2 and 2.7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal, TypedDict

from aiohttp import web
from msgspec import Meta

from ai.backend.common.states import ClusterMode, SessionType
from ai.backend.infra.http.decode import refuse
from ai.backend.infra.http.fields import (
    Duration,
    LongText,
    Path,
    Port,
    PortText,
    SessionName,
    Success,
    Word,
    duration_s,
    port_number,
)
from ai.backend.infra.http.routes import Call, Nothing, OwnerKey, Reply, Schema, route
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.requests import SESSION_PROBLEMS, caller_of
from ai.backend.manager.sessions.model import CreateReply
from ai.backend.manager.sessions.schemas import (
    CREATE_ALIASES,
    CreatedSession,
    DeviceRequestText,
    Environ,
    MountOption,
    PluginOptionsByName,
    Quantity,
    Variant,
)
from ai.backend.manager.sessions.views import created_session
from ai.backend.manager.templates.documents import MAX_PAYLOAD_BYTES
from ai.backend.manager.templates.model import Template, TemplateKind
from ai.backend.manager.templates.service import TemplateService, template_id_of

_DOCUMENT_TYPES = ("application/yaml", "application/json")
Payload = Annotated[str, Meta(min_length=1, max_length=MAX_PAYLOAD_BYTES)]


class TemplateBody(Schema, frozen=True):
    """Templates as text. A template that exists keeps its group and owner."""

    payload: Payload
    group_name: Word | None = None
    domain_name: Word | None = None
    owner_access_key: Word | None = None


class ListTemplatesQuery(Schema, frozen=True):
    all: bool = False
    group_id: Word | None = None


class TemplateQuery(Schema, frozen=True):
    format: Literal["yaml", "json"] = "yaml"


class FromTemplateConfig(Schema, frozen=True, rename={"scaling_group": "scalingGroup", "agent_list": "agentList"}):
    """The Creation Config Object; fields that are missing or null are as in the template, and an empty ``claim`` is
    none."""

    mounts: Annotated[list[Word], Meta(max_length=128)] | None = None
    mount_map: Annotated[dict[str, Path], Meta(max_length=128)] | None = None
    mount_options: Annotated[dict[str, MountOption], Meta(max_length=128)] | None = None
    environ: Environ | None = None
    resources: Annotated[dict[str, Quantity], Meta(max_length=64)] | None = None
    variant_requirements: Annotated[list[Variant], Meta(max_length=32)] | None = None
    device_requests: Annotated[list[DeviceRequestText], Meta(max_length=8)] | None = None
    plugin_options: PluginOptionsByName | None = None
    resource_opts: Annotated[dict[str, Quantity | bool], Meta(max_length=64)] | None = None
    scaling_group: Word | None = None
    preopen_ports: Annotated[list[Port | PortText], Meta(max_length=64)] | None = None
    agent_list: Annotated[list[Word], Meta(max_length=256)] | None = None
    claim: Annotated[str, Meta(max_length=64)] | None = None


class FromTemplateBody(
    Schema,
    frozen=True,
    rename={
        "cluster_size": "clusterSize",
        "cluster_mode": "clusterMode",
        "runtime_class": "runtimeClass",
        "enqueue_only": "enqueueOnly",
        "max_wait_s": "maxWaitSeconds",
        "reuse_if_exists": "reuseIfExists",
        "startup_command": "startupCommand",
        "batch_timeout_s": "batchTimeout",
        "exec_timeout_s": "execTimeout",
    },
):
    """A request for a session; fields that are missing or null are as in the template."""

    template_id: Annotated[str, Meta(min_length=1, max_length=64)]
    image: Word | None = None
    name: SessionName | None = None
    type: SessionType | None = None
    tag: Annotated[str, Meta(max_length=64)] | None = None
    domain: Word | None = None
    group: Word | None = None
    architecture: Word | None = None
    cluster_size: Annotated[int, Meta(ge=1, le=1_024)] | None = None
    cluster_mode: ClusterMode | None = None
    enqueue_only: bool | None = None
    max_wait_s: Annotated[int, Meta(ge=0, le=2_592_000)] | None = None
    reuse_if_exists: bool | None = None
    startup_command: LongText | None = None
    bootstrap_script: LongText | None = None
    starts_at: Annotated[str, Meta(max_length=64)] | None = None
    batch_timeout_s: Annotated[float, Meta(gt=0)] | Duration | None = None
    exec_timeout_s: Annotated[float, Meta(gt=0)] | None = None
    dependencies: Annotated[list[Word], Meta(max_length=256)] | None = None
    priority: Annotated[int, Meta(ge=0, le=100)] | None = None
    runtime_class: Annotated[str, Meta(max_length=64)] | None = None
    callback_url: Annotated[str, Meta(max_length=2_048, pattern="^https?://")] | None = None
    owner_access_key: Word | None = None
    config: FromTemplateConfig = FromTemplateConfig()


_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("dependencies", "mounts", "variant_requirements", "device_requests", "agent_list"), tuple),
    "preopen_ports": lambda ports: tuple(port_number(port) for port in ports),
    "batch_timeout_s": duration_s,
    "resource_opts": lambda options: {name: str(value) for name, value in options.items()},
    "mount_options": lambda options: {
        name: {"type": field.type, "permission": field.permission} for name, field in options.items()
    },
}


def overrides_of(body: FromTemplateBody) -> dict[str, Any]:
    """Returns the fields that a request sets, as those of :class:`ai.backend.manager.sessions.model.CreateSession`."""
    values = {
        name: getattr(body_part, name) for body_part in (body, body.config) for name in body_part.__struct_fields__
    }
    sent_values = {name: value for name, value in values.items() if value is not None}
    return {
        name: _CONVERSIONS[name](value) if name in _CONVERSIONS else value
        for name, value in sent_values.items()
        if name not in ("template_id", "config")
    }


class CreatedTemplate(TypedDict):
    id: str
    user: str


class ChangedTemplate(Success):
    id: str


class TemplateItem(TypedDict):
    """A template; ``user`` and ``group`` are ids."""

    id: str
    name: str
    created_at: str
    is_owner: bool
    type: Literal["user"]
    user: str
    user_email: str | None
    group: str
    group_name: str | None
    domain_name: str


def _template_view(template: Template, caller: Caller) -> dict[str, Any]:
    return {
        **{name: getattr(template, name) for name in ("name", "user_email", "group_name", "domain_name")},
        "id": str(template.id),
        "created_at": template.created_at.isoformat(),
        "is_owner": template.user_id == caller.user_id,
        "type": "user",
        "user": str(template.user_id),
        "group": str(template.group_id),
    }


class TemplatesApi:
    """Routes of templates, and of sessions created from them."""

    owner_key = OwnerKey.NAMED
    problems = SESSION_PROBLEMS

    def __init__(self, templates: TemplateService) -> None:
        self._templates = templates

    @route("POST", "/template/session", body=TemplateBody)
    @route("POST", "/template/cluster", body=TemplateBody)
    async def create(self, call: Call[TemplateBody]) -> list[CreatedTemplate]:
        """Stores the templates of a payload in YAML or JSON, and returns their ids."""
        body = call.body
        templates = await self._templates.create(
            caller_of(call),
            _kind(call),
            body.payload,
            group=body.group_name,
            domain=body.domain_name,
            owner_access_key=body.owner_access_key or call.owner_access_key,
        )
        return [{"id": str(template.id), "user": str(template.user_id)} for template in templates]

    @route("GET", "/template/session", query=ListTemplatesQuery, reply=list[TemplateItem])
    @route("GET", "/template/cluster", query=ListTemplatesQuery, reply=list[TemplateItem])
    async def templates(self, call: Call[Nothing, ListTemplatesQuery]) -> list[dict[str, Any]]:
        """Returns the caller's templates, or with ``all`` those that the caller may see."""
        caller, query = caller_of(call), call.query
        templates = await self._templates.list(caller, _kind(call), is_all=query.all)
        return [
            _template_view(template, caller)
            for template in templates
            if query.group_id in (None, str(template.group_id), template.group_name)
        ]

    @route("GET", "/template/session/{id}", query=TemplateQuery, produces=_DOCUMENT_TYPES, reply=dict[str, Any])
    @route("GET", "/template/cluster/{id}", query=TemplateQuery, produces=_DOCUMENT_TYPES, reply=dict[str, Any])
    async def get(self, call: Call[Nothing, TemplateQuery]) -> web.Response:
        """Returns the text of a template, in YAML or JSON."""
        text_format = call.query.format
        text = await self._templates.text(caller_of(call), _kind(call), template_id_of(call.params["id"]), text_format)
        return web.Response(text=text, content_type="application/json" if text_format == "json" else "application/yaml")

    @route("PUT", "/template/session/{id}", body=TemplateBody)
    @route("PUT", "/template/cluster/{id}", body=TemplateBody)
    async def update(self, call: Call[TemplateBody]) -> ChangedTemplate:
        """Replaces a template."""
        template_id = template_id_of(call.params["id"])
        changed_template = await self._templates.update(caller_of(call), _kind(call), template_id, call.body.payload)
        return {"success": True, "id": str(changed_template.id)}

    @route("DELETE", "/template/session/{id}")
    @route("DELETE", "/template/cluster/{id}")
    async def delete(self, call: Call) -> Success:
        """Deletes a template; its sessions stay."""
        await self._templates.delete(caller_of(call), _kind(call), template_id_of(call.params["id"]))
        return {"success": True}

    @route(
        "POST", "/session/_/create-from-template", body=FromTemplateBody, body_aliases=CREATE_ALIASES,
        reply=CreatedSession, status=201, also=(200,), repeatable=True,  # the session has the id of the call
    )  # fmt: skip
    async def create_from_template(self, call: Call[FromTemplateBody]) -> Reply:
        """Creates a session from a session template; fields of the request override those of the template."""
        return await self._create_session(call, self._templates.create_session, _owner_overrides(call))

    @route(
        "POST", "/session/_/create-cluster", body=FromTemplateBody,
        body_aliases={**CREATE_ALIASES, "scaling_group": "config.scalingGroup", "scalingGroup": "config.scalingGroup"},
        reply=CreatedSession, status=201, also=(200,), repeatable=True,  # the session has the id of the call
    )  # fmt: skip
    async def create_cluster(self, call: Call[FromTemplateBody]) -> Reply:
        """Creates a session whose kernels have the roles of a cluster template."""
        overrides = _owner_overrides(call)
        for name in ("cluster_size", "cluster_mode"):
            if name in overrides:
                raise refuse({name: "is in the cluster template"})
        return await self._create_session(call, self._templates.create_cluster, overrides)

    async def _create_session(
        self, call: Call[FromTemplateBody], create: Callable[..., Awaitable[CreateReply]], overrides: dict[str, Any]
    ) -> Reply:
        template_id = template_id_of(call.body.template_id)
        reply = await create(caller_of(call), template_id, overrides, call_id=call.call_id)
        session_view = created_session(reply, enqueue_only=bool(overrides.get("enqueue_only")))
        return Reply(session_view, 201 if reply.created else 200)


def _kind(call: Call[Any, Any]) -> TemplateKind:
    return TemplateKind(call.endpoint.path.split("/")[2])


def _owner_overrides(call: Call[FromTemplateBody]) -> dict[str, Any]:
    overrides = overrides_of(call.body)
    if call.owner_access_key is not None:
        if overrides.get("owner_access_key") not in (None, call.owner_access_key):
            raise refuse({"owner_access_key": "differs between query and body"})
        overrides["owner_access_key"] = call.owner_access_key
    return overrides
