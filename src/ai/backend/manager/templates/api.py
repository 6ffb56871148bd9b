"""REST routes of templates, and of sessions created from them (spec 03-11, client wire contract 2.1.2 and 2.7)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from ai.backend.common.states import ClusterMode, SessionType
from ai.backend.infra.http.decode import refuse
from ai.backend.infra.http.fields import LongText, Path, Port, PortText, Word, duration_s, port_number
from ai.backend.infra.http.routes import Call, Nothing, Reply, Schema, route
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.requests import caller_of
from ai.backend.manager.sessions.model import CreateReply
from ai.backend.manager.sessions.schemas import CREATE_ALIASES, CreatedSession, Environ, MountOption, Quantity, Variant
from ai.backend.manager.sessions.views import created_session
from ai.backend.manager.templates.documents import MAX_PAYLOAD_BYTES
from ai.backend.manager.templates.model import Template, TemplateKind
from ai.backend.manager.templates.service import TemplateService, template_id_of

Payload = Annotated[str, Meta(min_length=1, max_length=MAX_PAYLOAD_BYTES)]


class CreateTemplateBody(Schema, frozen=True):
    payload: Payload
    group_name: Word | None = None
    domain_name: Word | None = None
    owner_access_key: Word | None = None


class UpdateTemplateBody(Schema, frozen=True):
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
    """The Creation Config Object; missing fields are as in the template."""

    mounts: Annotated[list[Word], Meta(max_length=128)] | UnsetType | None = UNSET
    mount_map: Annotated[dict[str, Path], Meta(max_length=128)] | UnsetType | None = UNSET
    mount_options: Annotated[dict[str, MountOption], Meta(max_length=128)] | UnsetType | None = UNSET
    environ: Environ | UnsetType | None = UNSET
    resources: Annotated[dict[str, Quantity], Meta(max_length=64)] | UnsetType | None = UNSET
    variant_requirements: Annotated[list[Variant], Meta(max_length=32)] | UnsetType | None = UNSET
    resource_opts: Annotated[dict[str, Quantity | bool], Meta(max_length=64)] | UnsetType | None = UNSET
    scaling_group: Word | UnsetType | None = UNSET
    preopen_ports: Annotated[list[Port | PortText], Meta(max_length=64)] | UnsetType | None = UNSET
    agent_list: Annotated[list[Word], Meta(max_length=256)] | UnsetType | None = UNSET


class FromTemplateBody(
    Schema,
    frozen=True,
    rename={
        "cluster_size": "clusterSize",
        "cluster_mode": "clusterMode",
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
    image: Word | UnsetType | None = UNSET
    name: Annotated[str, Meta(min_length=4, max_length=64)] | UnsetType | None = UNSET
    type: SessionType | UnsetType | None = UNSET
    tag: Annotated[str, Meta(max_length=64)] | UnsetType | None = UNSET
    domain: Word | UnsetType | None = UNSET
    group: Word | UnsetType | None = UNSET
    architecture: Word | UnsetType | None = UNSET
    cluster_size: Annotated[int, Meta(ge=1, le=1_024)] | UnsetType | None = UNSET
    cluster_mode: ClusterMode | UnsetType | None = UNSET
    enqueue_only: bool | UnsetType | None = UNSET
    max_wait_s: Annotated[int, Meta(ge=0, le=2_592_000)] | UnsetType | None = UNSET
    reuse_if_exists: bool | UnsetType | None = UNSET
    startup_command: LongText | UnsetType | None = UNSET
    bootstrap_script: LongText | UnsetType | None = UNSET
    starts_at: Annotated[str, Meta(max_length=64)] | UnsetType | None = UNSET
    batch_timeout_s: Annotated[float, Meta(gt=0)] | Annotated[str, Meta(max_length=32)] | UnsetType | None = UNSET
    exec_timeout_s: Annotated[float, Meta(gt=0)] | UnsetType | None = UNSET
    dependencies: Annotated[list[Word], Meta(max_length=256)] | UnsetType | None = UNSET
    callback_url: Annotated[str, Meta(max_length=2_048, pattern="^https?://")] | UnsetType | None = UNSET
    owner_access_key: Word | UnsetType | None = UNSET
    config: FromTemplateConfig = FromTemplateConfig()


def overrides_of(body: FromTemplateBody) -> dict[str, Any]:
    """Returns the fields that a request sets, as those of :class:`ai.backend.manager.sessions.model.CreateSession`."""
    fields = {**_set_fields(body), **_set_fields(body.config)}
    for name in ("template_id", "config"):
        fields.pop(name, None)
    for name in ("dependencies", "mounts", "variant_requirements", "agent_list"):
        if name in fields:
            fields[name] = tuple(fields[name])
    if "preopen_ports" in fields:
        fields["preopen_ports"] = tuple(port_number(port) for port in fields["preopen_ports"])
    if "batch_timeout_s" in fields:
        fields["batch_timeout_s"] = duration_s(fields["batch_timeout_s"])
    if "resource_opts" in fields:
        fields["resource_opts"] = {name: str(value) for name, value in fields["resource_opts"].items()}
    if "mount_options" in fields:
        fields["mount_options"] = {
            name: {"type": option.type, "permission": option.permission}
            for name, option in fields["mount_options"].items()
        }
    return fields


def _set_fields(body: msgspec.Struct) -> dict[str, Any]:
    values = {name: getattr(body, name) for name in body.__struct_fields__}
    return {name: value for name, value in values.items() if value is not UNSET and value is not None}


def _template_view(template: Template, caller: Caller) -> dict[str, Any]:
    return {
        "id": str(template.id),
        "name": template.name,
        "created_at": template.created_at.isoformat(),
        "is_owner": template.user_id == caller.user_id,
        "type": "user",
        "user": str(template.user_id),
        "user_email": template.user_email,
        "group": str(template.group_id),
        "group_name": template.group_name,
        "domain_name": template.domain_name,
    }


class TemplatesApi:
    """Routes of templates, and of sessions created from them."""

    def __init__(self, templates: TemplateService) -> None:
        self._templates = templates

    # ---- session templates ----

    @route("POST", "/template/session", body=CreateTemplateBody)
    async def create(self, call: Call[CreateTemplateBody]) -> list[dict[str, str]]:
        """Store the templates of a payload in YAML or JSON, and reply with their ids."""
        return await self._create(call, TemplateKind.SESSION)

    @route("GET", "/template/session", query=ListTemplatesQuery)
    async def templates(self, call: Call[Nothing, ListTemplatesQuery]) -> list[dict[str, Any]]:
        """Return the caller's templates, or with ``all`` those that the caller may see."""
        return await self._list(call, TemplateKind.SESSION)

    @route("GET", "/template/session/{id}", query=TemplateQuery)
    async def get(self, call: Call[Nothing, TemplateQuery]) -> web.Response:
        """Return the text of a template, in YAML or JSON."""
        return await self._get(call, TemplateKind.SESSION)

    @route("PUT", "/template/session/{id}", body=UpdateTemplateBody)
    async def update(self, call: Call[UpdateTemplateBody]) -> dict[str, Any]:
        """Replace a template."""
        return await self._update(call, TemplateKind.SESSION)

    @route("DELETE", "/template/session/{id}")
    async def delete(self, call: Call) -> dict[str, Any]:
        """Delete a template; its sessions stay."""
        return await self._delete(call, TemplateKind.SESSION)

    # ---- cluster templates ----

    @route("POST", "/template/cluster", body=CreateTemplateBody)
    async def create_cluster_template(self, call: Call[CreateTemplateBody]) -> list[dict[str, str]]:
        """Store cluster templates, whose roles name session templates, and reply with their ids."""
        return await self._create(call, TemplateKind.CLUSTER)

    @route("GET", "/template/cluster", query=ListTemplatesQuery)
    async def list_cluster_templates(self, call: Call[Nothing, ListTemplatesQuery]) -> list[dict[str, Any]]:
        """Return the caller's cluster templates, or with ``all`` those that the caller may see."""
        return await self._list(call, TemplateKind.CLUSTER)

    @route("GET", "/template/cluster/{id}", query=TemplateQuery)
    async def get_cluster_template(self, call: Call[Nothing, TemplateQuery]) -> web.Response:
        """Return the text of a cluster template, in YAML or JSON."""
        return await self._get(call, TemplateKind.CLUSTER)

    @route("PUT", "/template/cluster/{id}", body=UpdateTemplateBody)
    async def update_cluster_template(self, call: Call[UpdateTemplateBody]) -> dict[str, Any]:
        """Replace a cluster template."""
        return await self._update(call, TemplateKind.CLUSTER)

    @route("DELETE", "/template/cluster/{id}")
    async def delete_cluster_template(self, call: Call) -> dict[str, Any]:
        """Delete a cluster template; its sessions stay."""
        return await self._delete(call, TemplateKind.CLUSTER)

    # ---- sessions ----

    @route(
        "POST",
        "/session/_/create-from-template",
        body=FromTemplateBody,
        body_aliases=CREATE_ALIASES,
        reply=CreatedSession,
        status=201,
        repeatable=True,  # the session has the id of the call
    )
    async def create_from_template(self, call: Call[FromTemplateBody]) -> Reply:
        """Create a session from a session template; fields of the request override those of the template."""
        overrides = _for_owner(call)
        reply = await self._templates.create_session(
            caller_of(call),
            template_id_of(call.body.template_id),
            overrides,
            call_id=call.call_id,
        )
        return _created(reply, overrides)

    @route(
        "POST",
        "/session/_/create-cluster",
        body=FromTemplateBody,
        body_aliases={**CREATE_ALIASES, "scaling_group": "config.scalingGroup", "scalingGroup": "config.scalingGroup"},
        reply=CreatedSession,
        status=201,
        repeatable=True,  # the session has the id of the call
    )
    async def create_cluster(self, call: Call[FromTemplateBody]) -> Reply:
        """Create a session whose kernels have the roles of a cluster template."""
        overrides = _for_owner(call)
        for name in ("cluster_size", "cluster_mode"):
            if name in overrides:
                raise refuse({name: "is in the cluster template"})
        reply = await self._templates.create_cluster(
            caller_of(call),
            template_id_of(call.body.template_id),
            overrides,
            call_id=call.call_id,
        )
        return _created(reply, overrides)

    # ---- both kinds ----

    async def _create(self, call: Call[CreateTemplateBody], kind: TemplateKind) -> list[dict[str, str]]:
        body = call.body
        templates = await self._templates.create(
            caller_of(call),
            kind,
            body.payload,
            group=body.group_name,
            domain=body.domain_name,
            owner_access_key=body.owner_access_key or call.owner_access_key,
        )
        return [{"id": str(template.id), "user": str(template.user_id)} for template in templates]

    async def _list(self, call: Call[Nothing, ListTemplatesQuery], kind: TemplateKind) -> list[dict[str, Any]]:
        caller, query = caller_of(call), call.query
        templates = await self._templates.list(caller, kind, is_all=query.all)
        return [_template_view(t, caller) for t in templates if query.group_id in (None, str(t.group_id), t.group_name)]

    async def _get(self, call: Call[Nothing, TemplateQuery], kind: TemplateKind) -> web.Response:
        form = call.query.format
        text = await self._templates.text(caller_of(call), kind, template_id_of(call.params["id"]), form)
        return web.Response(text=text, content_type="application/json" if form == "json" else "application/yaml")

    async def _update(self, call: Call[UpdateTemplateBody], kind: TemplateKind) -> dict[str, Any]:
        template_id = template_id_of(call.params["id"])
        changed = await self._templates.update(caller_of(call), kind, template_id, call.body.payload)
        return {"success": True, "id": str(changed.id)}

    async def _delete(self, call: Call, kind: TemplateKind) -> dict[str, Any]:
        await self._templates.delete(caller_of(call), kind, template_id_of(call.params["id"]))
        return {"success": True}


def _for_owner(call: Call[FromTemplateBody]) -> dict[str, Any]:
    overrides = overrides_of(call.body)
    if call.owner_access_key is not None:
        if overrides.get("owner_access_key") not in (None, call.owner_access_key):
            raise refuse({"owner_access_key": "differs between query and body"})
        overrides["owner_access_key"] = call.owner_access_key
    return overrides


def _created(reply: CreateReply, overrides: dict[str, Any]) -> Reply:
    view = created_session(reply, enqueue_only=bool(overrides.get("enqueue_only")))
    return Reply(view, 201 if reply.created else 200)
