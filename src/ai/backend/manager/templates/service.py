"""Manages templates, and creates sessions from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from ai.backend.common.errors import Forbidden, InvalidInput, NotFound
from ai.backend.common.ids import TemplateId
from ai.backend.common.states import SessionType
from ai.backend.common.structs import replace
from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.infra.http.fields import duration_s
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted, is_protected, scope_of, visibility_filter
from ai.backend.manager.access.permissions import Operation, Scope
from ai.backend.manager.identity.model import Group
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.sessions.model import CreateReply, CreateSession, KernelRole
from ai.backend.manager.sessions.service import SessionService
from ai.backend.manager.templates.documents import read_documents, write_document
from ai.backend.manager.templates.model import Template, TemplateKind
from ai.backend.manager.templates.store import TemplateStore
from ai.backend.manager.templates.syntax import ClusterTemplate, SessionTemplate, read_template

_COPIED_FIELDS = ("scaling_group", "cluster_size", "cluster_mode", "priority", "starts_at", "runtime_class", "claim")
_SHARED_FIELDS = ("claim", "variant_requirements", "device_requests", "plugin_options")
"""Fields of the template of ``main`` that apply to all kernels of a session."""
_MERGED_MAPS = ("environ", "resources", "resource_opts")
"""Fields whose single entries a request can replace."""


@dataclass(eq=False, slots=True)
class TemplateService:
    """Manages templates of users, and creates sessions from them."""

    _store: TemplateStore
    _identities: IdentityStore
    _identity: IdentityService
    _sessions: SessionService
    _clock: Clock
    _id_generator: IdGenerator

    async def create(
        self,
        caller: Caller,
        kind: TemplateKind,
        payload: str,
        *,
        group: str | None = None,
        domain: str | None = None,
        owner_access_key: str | None = None,
    ) -> Sequence[Template]:
        """Stores all templates of a payload, or none. Raises InvalidInput for a malformed one, NotFound for the group,
        Forbidden for the owner.
        """
        owner = await self._identity.resolve_owner(caller, owner_access_key)
        project = await self._find_group(owner, group or "default", domain)
        now = self._clock.now()
        templates = [
            Template(
                id=TemplateId(self._id_generator.uuid()),
                kind=kind,
                name=await self._check_document(caller, kind, document),
                domain_name=project.domain_name,
                group_id=project.id,
                group_name=project.name,
                user_id=owner.user_id,
                user_email=owner.email,
                document=document,
                created_at=now,
                modified_at=now,
            )
            for document in read_documents(payload)
        ]
        await self._store.add_templates(templates)
        return templates

    async def _find_group(self, owner: Caller, name: str, domain: str | None) -> Group:
        scope, domain = scope_of(owner, Operation.USE_GROUPS), domain or owner.domain_name
        if domain != owner.domain_name and scope is not Scope.ALL:
            raise NotFound("There is no such domain for you.", data={"domain_name": "unknown"})
        groups = await self._identities.groups(domain_name=domain, user_id=owner.user_id)
        if scope is not Scope.OWN:
            groups += await self._identities.groups(domain_name=domain)
        for group in groups:
            if name in (group.name, str(group.id)):
                return group
        raise NotFound(f"There is no group {name[:64]!r} for you.", data={"group_name": "unknown"})

    async def _check_document(self, caller: Caller, kind: TemplateKind, document: Mapping[str, Any]) -> str:
        """Checks a document and the templates to which it refers, and returns the name of the template."""
        if kind is TemplateKind.SESSION:
            return read_template(document, SessionTemplate).metadata.name
        cluster = read_template(document, ClusterTemplate)
        for node in cluster.nodes:
            try:
                await self.get(caller, TemplateKind.SESSION, TemplateId(node.session_template))
            except NotFound:
                message = f"The role {node.role} names no session template of yours."
                raise InvalidInput(message, data={"payload": f"{node.role}: no such session template"}) from None
        return cluster.metadata.name

    async def list(self, caller: Caller, kind: TemplateKind, *, is_all: bool = False) -> Sequence[Template]:
        """Returns the caller's templates, and with ``is_all`` also templates of others that the caller may see."""
        scope_filter = visibility_filter(caller, Operation.SEE_TEMPLATES) if is_all else {"user_id": caller.user_id}
        return await self._store.templates(kind, **scope_filter)

    async def get(self, caller: Caller, kind: TemplateKind, template_id: TemplateId) -> Template:
        """Returns a template. Raises NotFound, also for templates that the caller may not see."""
        template = await self._store.template(template_id)
        if template is None or template.kind is not kind or not _permits(caller, Operation.SEE_TEMPLATES, template):
            raise _no_template(kind)
        return template

    async def text(
        self, caller: Caller, kind: TemplateKind, template_id: TemplateId, text_format: Literal["yaml", "json"]
    ) -> str:
        """Returns the text of a template; comments and layout of the uploaded text are lost."""
        return write_document((await self.get(caller, kind, template_id)).document, text_format)

    async def update(self, caller: Caller, kind: TemplateKind, template_id: TemplateId, payload: str) -> Template:
        """Replaces a template. Raises NotFound, and InvalidInput for several templates."""
        template = await self._get_changeable(caller, kind, template_id)
        documents = read_documents(payload)
        if len(documents) != 1:
            raise InvalidInput("One template is replaced by one.", data={"payload": "more than one template"})
        changed_template = replace(
            template,
            name=await self._check_document(caller, kind, documents[0]),
            document=documents[0],
            modified_at=self._clock.now(),
        )
        if not await self._store.put_template(changed_template):
            raise _no_template(kind)
        return changed_template

    async def delete(self, caller: Caller, kind: TemplateKind, template_id: TemplateId) -> None:
        """Deletes a template. Sessions created from it are not changed."""
        await self._get_changeable(caller, kind, template_id)
        await self._store.drop_template(template_id)

    async def _get_changeable(self, caller: Caller, kind: TemplateKind, template_id: TemplateId) -> Template:
        template = await self.get(caller, kind, template_id)
        if not _permits(caller, Operation.CHANGE_TEMPLATES, template):
            raise _no_template(kind)
        if template.user_id != caller.user_id and scope_of(caller, Operation.CHANGE_TEMPLATES) is not Scope.ALL:
            owner = await self._identities.user(uuid=template.user_id)
            # The sessions of a superadmin must not run what an admin of a domain wrote.
            if owner is not None and is_protected(Operation.CHANGE_TEMPLATES, owner.role):
                raise Forbidden("Templates of superadmins are changed by superadmins.")
        return template

    async def create_session(
        self, caller: Caller, template_id: TemplateId, overrides: Mapping[str, Any], *, call_id: UUID | None = None
    ) -> CreateReply:
        """Creates a session from a session template. Raises NotFound, and as :meth:`SessionService.create`.

        Args:
            overrides: fields of :class:`CreateSession` that the request sets. Entries of ``environ``, ``resources`` and
                ``resource_opts`` replace single ones of the template; mounts replace all of them.
        """
        stored_template = await self._visible_template(
            caller, TemplateKind.SESSION, template_id, overrides.get("owner_access_key")
        )
        template = read_template(stored_template.document, SessionTemplate)
        values = {**_placement_values(stored_template), **_creation_values(template)}
        return await self._sessions.create(caller, _session_request(values, overrides), call_id=call_id)

    async def create_cluster(
        self, caller: Caller, template_id: TemplateId, overrides: Mapping[str, Any], *, call_id: UUID | None = None
    ) -> CreateReply:
        """Creates a session whose kernels have the roles of a cluster template; see :meth:`create_session`."""
        owner_key = overrides.get("owner_access_key")
        stored_template = await self._visible_template(caller, TemplateKind.CLUSTER, template_id, owner_key)
        cluster = read_template(stored_template.document, ClusterTemplate)
        templates: list[SessionTemplate] = []
        mounts = dict(cluster.spec.mounts)
        mount_options: dict[str, Any] = {}
        for node in cluster.nodes:
            node_template = await self._visible_template(
                caller, TemplateKind.SESSION, TemplateId(node.session_template), owner_key
            )
            templates.append(read_template(node_template.document, SessionTemplate))
            mounts = {**templates[-1].spec.mounts, **mounts}
            mount_options = {**_creation_values(templates[-1])["mount_options"], **mount_options}
        _check_roles(cluster, templates)
        roles = [
            _kernel_role(node.role, node.replicas, template)
            for node, template in zip(cluster.nodes, templates, strict=True)
        ]
        values = {
            **_placement_values(stored_template),
            **_creation_values(templates[0]),
            "cluster_mode": cluster.mode,
            "cluster_size": sum(role.replicas for role in roles),
            "environ": dict(cluster.spec.environ),
            "bootstrap_script": None,
            "mounts": tuple(mounts),
            "mount_map": {name: mount_path for name, mount_path in mounts.items() if mount_path},
            "mount_options": mount_options,
            "roles": tuple(roles),
        }
        return await self._sessions.create(caller, _session_request(values, overrides), call_id=call_id)

    async def _visible_template(
        self, caller: Caller, kind: TemplateKind, template_id: TemplateId, owner_access_key: str | None
    ) -> Template:
        """Returns a template by its id. Raises NotFound if neither caller nor session owner sees the template."""
        try:
            return await self.get(caller, kind, template_id)
        except NotFound:
            owner = await self._identity.resolve_owner(caller, owner_access_key)
            return await self.get(owner, kind, template_id)


def _no_template(kind: TemplateKind) -> NotFound:
    return NotFound(f"There is no such {kind} template.", data={"template_id": "unknown"})


def _permits(caller: Caller, operation: Operation, template: Template) -> bool:
    is_own = template.user_id == caller.user_id
    return is_permitted(caller, operation, domain_name=template.domain_name, is_own=is_own)


def _placement_values(template: Template) -> dict[str, Any]:
    return {"domain": template.domain_name, "group": str(template.group_id)}


def _creation_values(template: SessionTemplate) -> dict[str, Any]:
    spec, kernel = template.spec, template.spec.kernel
    return {
        "image": kernel.image,
        "architecture": kernel.architecture,
        "type": SessionType(spec.type),
        "tag": template.metadata.tag,
        "environ": dict(kernel.environ),
        "bootstrap_script": kernel.bootstrap_script,
        "startup_command": kernel.run.startup,
        "mounts": tuple(spec.mounts),
        "mount_map": {name: mount_path for name, mount_path in spec.mounts.items() if mount_path},
        "resources": dict(spec.resources) or None,
        "resource_opts": dict(spec.resource_opts),
        "mount_options": {name: {"permission": options.permission} for name, options in spec.mount_options.items()},
        "batch_timeout_s": duration_s(spec.batch_timeout),
        "preopen_ports": tuple(spec.preopen_ports),
        "variant_requirements": tuple(spec.variant_requirements),
        "device_requests": tuple(spec.device_requests),
        "plugin_options": dict(spec.plugin_options),
        **{name: getattr(spec, name) for name in _COPIED_FIELDS},
    }


def _kernel_role(name: str, replicas: int, template: SessionTemplate) -> KernelRole:
    kernel = template.spec.kernel
    return KernelRole(
        name=name,
        replicas=replicas,
        image=kernel.image,
        architecture=kernel.architecture,
        resources=dict(template.spec.resources) or None,
        environ=dict(kernel.environ),
        bootstrap_script=kernel.bootstrap_script,
        resource_opts=dict(template.spec.resource_opts) if name != "main" else {},
    )


def _check_roles(cluster: ClusterTemplate, templates: Sequence[SessionTemplate]) -> None:
    """Raises InvalidInput if a role's template requests other devices than the template of ``main``. All kernels of a
    session have one device claim, and the same requests for devices.
    """
    main_spec = templates[0].spec
    for node, template in zip(cluster.nodes, templates, strict=True):
        for name in _SHARED_FIELDS:
            value = getattr(template.spec, name)
            if value and value != getattr(main_spec, name):
                message = (
                    f"The template of the role {node.role} has another {name} than that of main; all kernels of a "
                    "session have the one of main."
                )
                raise InvalidInput(message, data={"template_id": f"{node.role}: {name} differs from that of main"})


def _session_request(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> CreateSession:
    """Returns the request for a session, in which values of the request override values of the template."""
    result = {**values, **overrides}
    for name in _MERGED_MAPS:
        if name in overrides:
            result[name] = {**(values.get(name) or {}), **(overrides[name] or {})} or None
            if name != "resources":
                result[name] = result[name] or {}
    if overrides.get("domain") not in (None, values["domain"]) and "group" not in overrides:
        result["group"] = None  # the template's group is in its own domain
    result["claim"] = result["claim"] or None
    result["mounts"] = overrides.get("mounts") or values["mounts"]
    for name in ("mount_map", "mount_options"):  # those of the template's mounts that the request keeps
        kept_entries = {mount: value for mount, value in values[name].items() if mount in result["mounts"]}
        result[name] = {**kept_entries, **overrides.get(name, {})}
    return CreateSession(**result)


def template_id_of(text: str) -> TemplateId:
    """Parses the id of a template. Raises NotFound for a text that is not an id."""
    try:
        return TemplateId(UUID(text))
    except ValueError:
        raise NotFound("There is no such template.", data={"template_id": "unknown"}) from None
