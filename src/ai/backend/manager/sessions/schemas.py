"""What session requests look like on the wire.

Source: spec 03-08, client wire contract 2.1 and 5 (spellings of the Web UI). Sizes are bounds of sanity: a name of a
gigabyte is refused here, a name that does not exist is the service's word.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ai.backend.common.states import ClusterMode, SessionType
from ai.backend.infra.http.fields import LongText, Path, Port, PortText, Word
from ai.backend.infra.http.routes import Schema

Variant = Annotated[str, Meta(min_length=1, max_length=400)]
Quantity = str | int | float
Environ = Annotated[dict[str, Annotated[str, Meta(max_length=65_536)]], Meta(max_length=512)]


class MountOption(Schema, frozen=True):
    type: Literal["bind"] = "bind"
    permission: Literal["ro", "rw", "wd"] | None = None


class SessionConfig(Schema, frozen=True, rename={"scaling_group": "scalingGroup", "agent_list": "agentList"}):
    """The Creation Config Object (spec 03-07). The ``instance*`` fields are deprecated since v4.

    ``variant_requirements`` are ``namespace::feature::value`` (BEP-1000; peer facts 1.2).
    """

    mounts: Annotated[list[Word], Meta(max_length=128)] = msgspec.field(default_factory=list)
    mount_map: Annotated[dict[str, Path], Meta(max_length=128)] = msgspec.field(default_factory=dict)
    mount_options: Annotated[dict[str, MountOption], Meta(max_length=128)] = msgspec.field(default_factory=dict)
    environ: Environ = msgspec.field(default_factory=dict)
    resources: Annotated[dict[str, Quantity], Meta(max_length=64)] | None = None
    variant_requirements: Annotated[list[Variant], Meta(max_length=32)] = msgspec.field(default_factory=list)
    resource_opts: Annotated[dict[str, Quantity | bool], Meta(max_length=64)] = msgspec.field(default_factory=dict)
    scaling_group: Word | None = None
    preopen_ports: Annotated[list[Port | PortText], Meta(max_length=64)] = msgspec.field(default_factory=list)
    agent_list: Annotated[list[Word], Meta(max_length=256)] = msgspec.field(default_factory=list)
    instanceMemory: Annotated[int, Meta(ge=1)] | None = None  # noqa: N815  # the wire's name
    instanceCores: Annotated[int, Meta(ge=1)] | None = None  # noqa: N815  # the wire's name
    instanceGPUs: Annotated[float, Meta(ge=0)] | None = None  # noqa: N815  # the wire's name


class CreateSessionBody(
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
        "batch_timeout": "batchTimeout",
        "exec_timeout": "execTimeout",
    },
):
    """``maxWaitSeconds`` 0 waits without limit; ``startsAt`` is an ISO time or a duration such as ``1h``.

    ``priority``: a larger one is scheduled first; the resource group bounds what users may ask for.
    """

    image: Word
    name: Annotated[str, Meta(min_length=4, max_length=64)] | None = None
    type: SessionType = SessionType.INTERACTIVE
    tag: Annotated[str, Meta(max_length=64)] | None = None
    domain: Word | None = None
    group: Word | None = None
    architecture: Word | None = None
    cluster_size: Annotated[int, Meta(ge=1, le=1_024)] = 1
    cluster_mode: ClusterMode = ClusterMode.SINGLE_NODE
    runtime_class: Annotated[str, Meta(max_length=64)] = ""
    enqueue_only: bool = False
    max_wait_s: Annotated[int, Meta(ge=0, le=2_592_000)] = 0
    reuse_if_exists: bool = True
    startup_command: LongText | None = None
    bootstrap_script: LongText | None = None
    starts_at: Annotated[str, Meta(max_length=64)] | None = None
    batch_timeout: Annotated[float, Meta(gt=0)] | Annotated[str, Meta(max_length=32)] | None = None
    exec_timeout: Annotated[float, Meta(gt=0)] | None = None
    dependencies: Annotated[list[Word], Meta(max_length=256)] = msgspec.field(default_factory=list)
    priority: Annotated[int, Meta(ge=0, le=100)] | None = None
    callback_url: Annotated[str, Meta(max_length=2_048, pattern="^https?://")] | None = None
    owner_access_key: Word | None = None
    config: SessionConfig = msgspec.field(default_factory=SessionConfig)


CREATE_ALIASES = {
    "lang": "image",
    "clientSessionToken": "name",
    "session_name": "name",
    "sessionName": "name",
    "sessionType": "type",
    "session_type": "type",
    "group_name": "group",
    "groupName": "group",
    "domain_name": "domain",
    "domainName": "domain",
    "cluster_size": "clusterSize",
    "cluster_mode": "clusterMode",
    "runtime_class": "runtimeClass",
    "enqueue_only": "enqueueOnly",
    "max_wait_seconds": "maxWaitSeconds",
    "reuse_if_exists": "reuseIfExists",
    "startup_command": "startupCommand",
    "bootstrapScript": "bootstrap_script",
    "startsAt": "starts_at",
    "batch_timeout": "batchTimeout",
    "exec_timeout": "execTimeout",
    "callbackUrl": "callback_url",
    "callbackURL": "callback_url",
    "ownerAccessKey": "owner_access_key",
    "config.scaling_group": "config.scalingGroup",
    "config.agent_list": "config.agentList",
    "config.mountMap": "config.mount_map",
    "config.mountOptions": "config.mount_options",
    "config.resourceOpts": "config.resource_opts",
    "config.variantRequirements": "config.variant_requirements",
    "variant_requirements": "config.variant_requirements",
    "config.preopenPorts": "config.preopen_ports",
    "config.clusterSize": "clusterSize",
    "config.cluster_size": "clusterSize",
}
"""Other spellings that there are: legacy (spec 03-08), the Web UI's (wire contract 5), the published SDK's,
BEP-1016's (peer facts 1.2)."""


class ServicePort(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    protocol: str
    ports: list[int] = []


class CreatedSession(msgspec.Struct, frozen=True, kw_only=True):
    """``sessId`` is the session's name, as the spec has it; ``sessionId`` its id, as the published client reads it."""

    sessionId: str  # noqa: N815  # the wire's name
    sessId: str  # noqa: N815  # the wire's name
    name: str
    status: str
    status_info: str | None
    servicePorts: list[ServicePort]  # noqa: N815  # the wire's name
    created: bool


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """``age`` and ``cpuCreditUsed`` in ms, ``memoryLimit`` in KiB (spec 03-08)."""

    lang: str
    age: int
    memory_limit: int
    num_queries_executed: int
    cpu_credit_used: int
    session_id: str
    name: str
    type: str
    image: str
    architecture: str
    tag: str | None
    status: str
    status_info: str | None
    result: str
    domain_name: str
    group_id: str
    group_name: str
    user_id: str
    access_key: str
    scaling_group: str
    cluster_mode: str
    cluster_size: int
    occupying_slots: dict[str, str]
    requested_slots: dict[str, str]
    variant_requirements: list[str]
    environ: dict[str, str]
    resource_opts: dict[str, str]
    service_ports: list[ServicePort]
    startup_command: str | None
    created_at: str
    started_at: str | None
    terminated_at: str | None


class DestroyQuery(Schema, frozen=True):
    forced: bool = False
    recursive: bool = False


class RenameQuery(Schema, frozen=True):
    name: Annotated[str, Meta(min_length=4, max_length=64)]


class MatchQuery(Schema, frozen=True):
    """``id`` is the beginning of a name or id."""

    id: Annotated[str, Meta(min_length=1, max_length=64)]
