"""Defines requests about model services, as the API has parsed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ai.backend.common.states import ClusterMode


class RevisionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The image, model, environment, resources and server that a user requests for the replicas of an endpoint.

    See client wire contract 2.8. ``model`` is the name or id of a folder, or an artifact as
    ``artifact:NAME[@VERSION]``. ``model_name`` chooses one of the models of its definition, or, without a definition,
    names the model. ``resources`` are as the user wrote them. ``sealed_environ`` are the secrets of the revision
    before. An empty ``claim`` is none. ``variant_requirements`` and ``device_requests`` are those of each replica's
    session.
    """

    image: str
    model: str
    architecture: str | None = None
    model_version: str | None = None
    model_definition_path: str | None = None
    model_name: str | None = None
    model_mount_destination: str = "/models"
    runtime_variant: str = "custom"
    environ: Mapping[str, str] = msgspec.field(default_factory=dict)
    sealed_environ: Mapping[str, str] = msgspec.field(default_factory=dict)
    resources: Mapping[str, str | int | float] | None = None
    resource_opts: Mapping[str, str] = msgspec.field(default_factory=dict)
    cluster_size: int = 1
    cluster_mode: ClusterMode = ClusterMode.SINGLE_NODE
    tag: str | None = None
    startup_command: str | None = None
    bootstrap_script: str | None = None
    callback_url: str | None = None
    port: int | None = None
    claim: str | None = None
    variant_requirements: Sequence[str] = ()
    device_requests: Sequence[str] = ()


class CreateService(msgspec.Struct, frozen=True, kw_only=True):
    """A request for an endpoint."""

    name: str
    replicas: int
    revision: RevisionRequest
    group: str | None = None
    domain: str | None = None
    scaling_group: str | None = None
    owner_access_key: str | None = None
    open_to_public: bool = False
    policy: Mapping[str, Any] = msgspec.field(default_factory=dict)


class ModifyService(msgspec.Struct, frozen=True, kw_only=True):
    """Describes changes of an endpoint; a field that is None leaves its value unchanged. ``revision`` are fields of
    :class:`RevisionRequest`: any of them makes a new revision, which is rolled out.
    """

    replicas: int | None = None
    name: str | None = None
    open_to_public: bool | None = None
    policy: Mapping[str, Any] | None = None
    revision: Mapping[str, Any] = msgspec.field(default_factory=dict)
