"""Session and cluster templates, and sessions of them (spec 03-11, client wire contract 2.1.2 and 2.7)."""

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
    """The Creation Config Object; what is not given is as in the template."""

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
    """As the creation of a session; what is not given, or null, is as in the template."""

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


def given_by(body: FromTemplateBody) -> dict[str, Any]:
    """What a request states, as fields of :class:`ai.backend.manager.sessions.model.CreateSession`."""
    stated = {**_stated(body), **_stated(body.config)}
    for name in ("template_id", "config"):
        stated.pop(name, None)
    for name in ("dependencies", "mounts", "variant_requirements", "agent_list"):
        if name in stated:
            stated[name] = tuple(stated[name])
    if "preopen_ports" in stated:
        stated["preopen_ports"] = tuple(port_number(port) for port in stated["preopen_ports"])
    if "batch_timeout_s" in stated:
        stated["batch_timeout_s"] = duration_s(stated["batch_timeout_s"])
    if "resource_opts" in stated:
        stated["resource_opts"] = {name: str(value) for name, value in stated["resource_opts"].items()}
    if "mount_options" in stated:
        stated["mount_options"] = {
            name: {"type": option.type, "permission": option.permission}
            for name, option in stated["mount_options"].items()
        }
    return stated


def _stated(body: msgspec.Struct) -> dict[str, Any]:
    values = {name: getattr(body, name) for name in body.__struct_fields__}
    return {name: value for name, value in values.items() if value is not UNSET and value is not None}


def _listed(template: Template, caller: Caller) -> dict[str, Any]:
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
    """Templates belong to users; what others keep is not found."""

    def __init__(self, templates: TemplateService) -> None:
        self._templates = templates

    # ---- session templates ----

    @route("POST", "/template/session", body=CreateTemplateBody)
    async def create(self, call: Call[CreateTemplateBody]) -> list[dict[str, str]]:
        """Keep the templates of a payload in YAML or JSON; replies with their ids."""
        return await self._create(call, TemplateKind.SESSION)

    @route("GET", "/template/session", query=ListTemplatesQuery)
    async def templates(self, call: Call[Nothing, ListTemplatesQuery]) -> list[dict[str, Any]]:
        """The caller's templates; administrators may ask for all that they see."""
        return await self._list(call, TemplateKind.SESSION)

    @route("GET", "/template/session/{id}", query=TemplateQuery)
    async def get(self, call: Call[Nothing, TemplateQuery]) -> web.Response:
        """The text of a template, in YAML or JSON."""
        return await self._get(call, TemplateKind.SESSION)

    @route("PUT", "/template/session/{id}", body=UpdateTemplateBody)
    async def update(self, call: Call[UpdateTemplateBody]) -> dict[str, Any]:
        """Replace what a template says."""
        return await self._update(call, TemplateKind.SESSION)

    @route("DELETE", "/template/session/{id}")
    async def delete(self, call: Call) -> dict[str, Any]:
        """Forget a template; its sessions stay."""
        return await self._delete(call, TemplateKind.SESSION)

    # ---- cluster templates ----

    @route("POST", "/template/cluster", body=CreateTemplateBody)
    async def create_cluster_template(self, call: Call[CreateTemplateBody]) -> list[dict[str, str]]:
        """Keep cluster templates, whose roles name session templates; replies with their ids."""
        return await self._create(call, TemplateKind.CLUSTER)

    @route("GET", "/template/cluster", query=ListTemplatesQuery)
    async def list_cluster_templates(self, call: Call[Nothing, ListTemplatesQuery]) -> list[dict[str, Any]]:
        """The caller's cluster templates; administrators may ask for all that they see."""
        return await self._list(call, TemplateKind.CLUSTER)

    @route("GET", "/template/cluster/{id}", query=TemplateQuery)
    async def get_cluster_template(self, call: Call[Nothing, TemplateQuery]) -> web.Response:
        """The text of a cluster template, in YAML or JSON."""
        return await self._get(call, TemplateKind.CLUSTER)

    @route("PUT", "/template/cluster/{id}", body=UpdateTemplateBody)
    async def update_cluster_template(self, call: Call[UpdateTemplateBody]) -> dict[str, Any]:
        """Replace what a cluster template says."""
        return await self._update(call, TemplateKind.CLUSTER)

    @route("DELETE", "/template/cluster/{id}")
    async def delete_cluster_template(self, call: Call) -> dict[str, Any]:
        """Forget a cluster template; its sessions stay."""
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
        """Create a session as a session template says; what the request gives takes the place of it."""
        given = _for_owner(call)
        reply = await self._templates.create_session(
            caller_of(call),
            template_id_of(call.body.template_id),
            given,
            call_id=call.call_id,
        )
        return _created(reply, given)

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
        given = _for_owner(call)
        for name in ("cluster_size", "cluster_mode"):
            if name in given:
                raise refuse({name: "is in the cluster template"})
        reply = await self._templates.create_cluster(
            caller_of(call),
            template_id_of(call.body.template_id),
            given,
            call_id=call.call_id,
        )
        return _created(reply, given)

    # ---- of either kind ----

    async def _create(self, call: Call[CreateTemplateBody], kind: TemplateKind) -> list[dict[str, str]]:
        body = call.body
        made = await self._templates.create(
            caller_of(call),
            kind,
            body.payload,
            group=body.group_name,
            domain=body.domain_name,
            owner_access_key=body.owner_access_key or call.owner_access_key,
        )
        return [{"id": str(one.id), "user": str(one.user_id)} for one in made]

    async def _list(self, call: Call[Nothing, ListTemplatesQuery], kind: TemplateKind) -> list[dict[str, Any]]:
        caller, query = caller_of(call), call.query
        found = await self._templates.list(caller, kind, is_all=query.all)
        return [_listed(t, caller) for t in found if query.group_id in (None, str(t.group_id), t.group_name)]

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
    given = given_by(call.body)
    if call.owner_access_key is not None:
        if given.get("owner_access_key") not in (None, call.owner_access_key):
            raise refuse({"owner_access_key": "differs between query and body"})
        given["owner_access_key"] = call.owner_access_key
    return given


def _created(reply: CreateReply, given: dict[str, Any]) -> Reply:
    told = created_session(reply, enqueue_only=bool(given.get("enqueue_only")))
    return Reply(told, 201 if reply.created else 200)
