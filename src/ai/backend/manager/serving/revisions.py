"""Builds revisions of endpoints from requests, and requests for sessions from revisions."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ai.backend.common.errors import InvalidInput, NoSuchFile
from ai.backend.common.states import SessionType
from ai.backend.common.structs import replace
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.artifacts.mounts import is_artifact
from ai.backend.manager.folders.mounts import check_target
from ai.backend.manager.secrets.sealer import Sealer, seal_environ
from ai.backend.manager.serving.definition import (
    DEFINITION_FILES,
    MAX_DEFINITION_BYTES,
    RuntimeVariant,
    read_definition,
    variant_named,
    variant_service,
)
from ai.backend.manager.serving.gateway import ModelFolders
from ai.backend.manager.serving.model import Endpoint, Replica, RevisionSpec, ServedModel, port_of, with_port
from ai.backend.manager.serving.requests import RevisionRequest
from ai.backend.manager.sessions.creation.factory import SessionFactory
from ai.backend.manager.sessions.creation.request import check_environ
from ai.backend.manager.sessions.model import CreateSession, Session

_NO_ENDPOINT = UUID(int=0)
SESSION_FIELDS = (
    *("image", "architecture", "cluster_size", "cluster_mode", "tag", "bootstrap_script", "callback_url"),
    *("claim", "variant_requirements", "device_requests"),
)
"""The fields of a revision that are copied to the sessions of its replicas."""


@dataclass(eq=False, repr=False, kw_only=True)
class RevisionBuilder:
    """Builds revisions of endpoints from requests, and checks requests as far as possible before a replica runs."""

    folders: ModelFolders
    factory: SessionFactory
    sealer: Sealer

    async def build(
        self, caller: Caller, owner: Caller, request: RevisionRequest, tenant: Mapping[str, str | None]
    ) -> tuple[RevisionSpec, Session]:
        """Returns a revision, and a session like those that its replicas will have. ``tenant`` has ``group``,
        ``domain`` and ``scaling_group``.

        Raises InvalidInput, which names the field or the file; Forbidden; and as ``SessionFactory.build``.
        """
        variant = variant_named(request.runtime_variant)
        mount_destination = check_target(request.model, request.model_mount_destination)
        request = replace(
            request,
            model_mount_destination=mount_destination,
            claim=request.claim or None,
            variant_requirements=tuple(request.variant_requirements),
            device_requests=tuple(request.device_requests),
        )
        served_model = await self._served_model(owner, request, variant)
        environ, sealed_variables = self._split_environ(request, variant)
        spec = RevisionSpec(
            **{name: getattr(request, name) for name in SESSION_FIELDS},
            model=request.model,
            model_version=request.model_version,
            model_definition_path=request.model_definition_path,
            model_name=request.model_name,
            model_mount_destination=mount_destination,
            runtime_variant=request.runtime_variant,
            served=served_model,
            environ=environ,
            sealed_environ=sealed_variables,
            resources={name: str(value) for name, value in (request.resources or {}).items()},
            resource_opts=dict(request.resource_opts),
            startup_command=request.startup_command,
        )
        session, _ = await self.factory.build(caller, owner, trial_request(spec, tenant))
        if session.vfolder_mounts and not is_artifact(spec.model):
            mount = next(each for each in session.vfolder_mounts if each.target == mount_destination)
            spec = replace(spec, model=str(mount.folder_id))
        return spec, session

    def _split_environ(
        self, request: RevisionRequest, variant: RuntimeVariant
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Splits the environment variables of a request into visible ones and sealed secrets of the runtime variant.

        A secret stays until it is replaced; an empty one removes it.
        """
        environ = check_environ(request.environ, max_bytes=self.factory.settings.max_environ_bytes)
        secrets = {name: environ[name] for name in variant.secrets if name in environ}
        visible_variables = {name: text for name, text in environ.items() if name not in secrets}
        kept_secrets = {name: text for name, text in request.sealed_environ.items() if name in variant.secrets}
        sealed_secrets = {
            **kept_secrets,
            **seal_environ(self.sealer, {name: text for name, text in secrets.items() if text}),
        }
        return visible_variables, {name: text for name, text in sealed_secrets.items() if secrets.get(name, text)}

    async def _served_model(self, owner: Caller, request: RevisionRequest, variant: RuntimeVariant) -> ServedModel:
        definition = await self._definition(owner, request)
        mount_destination, command = request.model_mount_destination, request.startup_command
        if definition is not None and command is None:
            file, content = definition
            return read_definition(content, file=file, mount_destination=mount_destination, name=request.model_name)
        if command is not None and not command.strip():
            raise InvalidInput("startup_command is empty.", data={"startup_command": "empty"})
        name = (
            request.model_name
            or posixpath.basename(request.model.removeprefix("artifact:").partition("@")[0])
            or "model"
        )
        return variant_service(
            variant, name=name, mount_destination=mount_destination, command=command, port=request.port
        )

    async def _definition(self, owner: Caller, request: RevisionRequest) -> tuple[str, bytes] | None:
        """Returns the name and bytes of the definition in the model folder, or None if the folder has none. A
        definition that the request names must exist.
        """
        if is_artifact(request.model) or request.startup_command is not None:
            return None
        names = (request.model_definition_path,) if request.model_definition_path else DEFINITION_FILES
        for name in names:
            try:
                content = await self.folders.read(owner, request.model, name, max_bytes=MAX_DEFINITION_BYTES)
            except NoSuchFile:
                continue
            return name, content
        if request.model_definition_path:
            message = f"The model folder has no file {request.model_definition_path[:128]!r}."
            raise InvalidInput(message, data={"model_definition_path": "no such file"})
        return None


def request_of(spec: RevisionSpec) -> RevisionRequest:
    """Returns a request from which the same revision would be built again."""
    names = set(RevisionRequest.__struct_fields__) & {*RevisionSpec.__struct_fields__}
    return RevisionRequest(**{name: getattr(spec, name) for name in names}, port=spec.served.port)


def changed_request(spec: RevisionSpec, changes: Mapping[str, Any]) -> RevisionRequest:
    """Returns the request of a revision in which ``changes`` replace the values of some fields."""
    return replace(request_of(spec), **changes)


def trial_request(
    spec: RevisionSpec, tenant: Mapping[str, str | None], replica_id: UUID = _NO_ENDPOINT
) -> CreateSession:
    """Returns a request for a session that runs the server of a revision but belongs to no endpoint."""
    port = port_of(spec.served, replica_id)
    return CreateSession(
        **{name: getattr(spec, name) for name in SESSION_FIELDS},
        type=SessionType.INFERENCE,
        group=tenant.get("group"),
        domain=tenant.get("domain"),
        scaling_group=tenant.get("scaling_group"),
        startup_command=with_port(spec.served.command, port),
        environ=replica_environ(spec, port),
        sealed_environ=spec.sealed_environ,
        resources=spec.resources or None,
        resource_opts=spec.resource_opts,
        mounts=(spec.model,),
        mount_map={spec.model: spec.model_mount_destination},
        mount_options={spec.model: {"permission": "ro"}},
        enqueue_only=True,
        endpoint_id=_NO_ENDPOINT,
    )


def replica_request(endpoint: Endpoint, spec: RevisionSpec, replica: Replica) -> CreateSession:
    """Returns the request for the session of a replica."""
    tenant = {
        "group": str(endpoint.group_id),
        "domain": endpoint.domain_name,
        "scaling_group": endpoint.resource_group,
    }
    request = trial_request(spec, tenant, replica.id)
    name = f"{endpoint.name[:48]}-{replica.id.hex[:12]}"
    return replace(request, name=name, endpoint_id=endpoint.id, owner_access_key=None, reuse_if_exists=True)


def replica_environ(spec: RevisionSpec, port: int) -> dict[str, str]:
    """Returns the environment of a replica: the variables of the runtime variant and the user, and server settings."""
    return {
        **{name: with_port(text, port) for name, text in spec.served.environ.items()},
        **spec.environ,
        "BACKEND_MODEL_NAME": spec.served.name,
        "BACKEND_MODEL_PATH": spec.served.path,
        "BACKEND_SERVICE_PORT": str(port),
    }
