"""Requests and replies of sessions on the wire.

Source: spec 03-08, client wire contract 2.1 and 5 (spellings of the Web UI). The bounds refuse absurd sizes; whether a
name exists is checked by the service.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta

from ai.backend.common.states import ClusterMode, SessionType
from ai.backend.infra.http.fields import Duration, LongText, Path, Port, PortText, SessionName, Word
from ai.backend.infra.http.routes import Schema
from ai.backend.manager.agents.schemas import MetricSeries

Variant = Annotated[str, Meta(min_length=1, max_length=400)]
DeviceRequestText = Annotated[str, Meta(min_length=1, max_length=2_048)]
PluginOptionsByName = Annotated[
    dict[Annotated[str, Meta(min_length=1, max_length=64)], dict[str, Any]], Meta(max_length=16)
]
DiagnosedDevices = Annotated[
    dict[
        Annotated[str, Meta(min_length=1, max_length=64)],
        Annotated[list[Annotated[str, Meta(min_length=1, max_length=512)]], Meta(min_length=1, max_length=64)],
    ],
    Meta(max_length=8),
]
Quantity = str | int | float
Environ = Annotated[dict[str, Annotated[str, Meta(max_length=65_536)]], Meta(max_length=512)]


class MountOption(Schema, frozen=True):
    type: Literal["bind"] = "bind"
    permission: Literal["ro", "rw", "wd"] | None = None


class SessionConfig(Schema, frozen=True, rename={"scaling_group": "scalingGroup", "agent_list": "agentList"}):
    """The Creation Config Object (spec 03-07). The ``instance*`` fields are deprecated since v4.

    ``variant_requirements`` are ``namespace::feature::value`` (BEP-1000; peer facts 1.2). ``device_requests`` are
    expressions over what devices are, alternatives in order; see the reference of device requests. ``plugin_options``
    are by the name of an accelerator plugin; its own schema, in ``compute_plugins`` of agents, says which there are.
    ``claim`` is the name of a device claim, which provides the accelerators.
    ``diagnosed_devices`` are ids by plugin, of the one agent in ``agentList``: a superadmin's session sees these
    devices and holds none of them.
    """

    mounts: Annotated[list[Word], Meta(max_length=128)] = msgspec.field(default_factory=list)
    mount_map: Annotated[dict[str, Path], Meta(max_length=128)] = msgspec.field(default_factory=dict)
    mount_options: Annotated[dict[str, MountOption], Meta(max_length=128)] = msgspec.field(default_factory=dict)
    environ: Environ = msgspec.field(default_factory=dict)
    resources: Annotated[dict[str, Quantity], Meta(max_length=64)] | None = None
    variant_requirements: Annotated[list[Variant], Meta(max_length=32)] = msgspec.field(default_factory=list)
    device_requests: Annotated[list[DeviceRequestText], Meta(max_length=8)] = msgspec.field(default_factory=list)
    plugin_options: PluginOptionsByName = msgspec.field(default_factory=dict)
    diagnosed_devices: DiagnosedDevices = msgspec.field(default_factory=dict)
    resource_opts: Annotated[dict[str, Quantity | bool], Meta(max_length=64)] = msgspec.field(default_factory=dict)
    claim: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    scaling_group: Word | None = None
    preopen_ports: Annotated[list[Port | PortText], Meta(max_length=64)] = msgspec.field(default_factory=list)
    agent_list: Annotated[list[Word], Meta(max_length=256)] = msgspec.field(default_factory=list)
    instanceMemory: Annotated[int, Meta(ge=1)] | None = None  # noqa: N815  # the wire's name
    instanceCores: Annotated[int, Meta(ge=1)] | None = None  # noqa: N815  # the wire's name
    instanceGPUs: Annotated[float, Meta(ge=0)] | None = None  # noqa: N815  # the wire's name


_CAMEL_FIELDS = (
    *("cluster_size", "cluster_mode", "runtime_class", "enqueue_only", "reuse_if_exists", "startup_command"),
    *("batch_timeout", "exec_timeout"),
)


def _camel_case(name: str) -> str:
    first_word, *further_words = name.split("_")
    return first_word + "".join(word.capitalize() for word in further_words)


_CAMEL_CASE_NAMES = {field_name: _camel_case(field_name) for field_name in _CAMEL_FIELDS}


class CreateSessionBody(Schema, frozen=True, rename={**_CAMEL_CASE_NAMES, "max_wait_s": "maxWaitSeconds"}):
    """The body of a creation. ``maxWaitSeconds`` 0 waits without limit; ``startsAt`` is a time or a duration (``1h``).

    A larger ``priority`` is scheduled first; the resource group bounds that of users.
    """

    image: Word
    name: SessionName | None = None
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
    batch_timeout: Annotated[float, Meta(gt=0)] | Duration | None = None
    exec_timeout: Annotated[float, Meta(gt=0)] | None = None
    dependencies: Annotated[list[Word], Meta(max_length=256)] = msgspec.field(default_factory=list)
    priority: Annotated[int, Meta(ge=0, le=100)] | None = None
    callback_url: Annotated[str, Meta(max_length=2_048, pattern="^https?://")] | None = None
    owner_access_key: Word | None = None
    config: SessionConfig = msgspec.field(default_factory=SessionConfig)


_CONFIG_FIELDS = (
    *("mount_map", "mount_options", "resource_opts", "variant_requirements", "device_requests"),
    *("plugin_options", "diagnosed_devices", "preopen_ports"),
)
CREATE_ALIASES = {
    **_CAMEL_CASE_NAMES,
    **{_camel_case(name): name for name in ("bootstrap_script", "starts_at", "callback_url", "owner_access_key")},
    **{f"config.{_camel_case(name)}": f"config.{name}" for name in _CONFIG_FIELDS},
    **{f"config.{name}": f"config.{_camel_case(name)}" for name in ("scaling_group", "agent_list")},
    "lang": "image",
    **dict.fromkeys(("clientSessionToken", "session_name", "sessionName"), "name"),
    **dict.fromkeys(("sessionType", "session_type"), "type"),
    **dict.fromkeys(("group_name", "groupName"), "group"),
    **dict.fromkeys(("domain_name", "domainName"), "domain"),
    "max_wait_seconds": "maxWaitSeconds",
    "callbackURL": "callback_url",
    "variant_requirements": "config.variant_requirements",
    **dict.fromkeys(("config.clusterSize", "config.cluster_size"), "clusterSize"),
}
"""Other spellings of fields: legacy (spec 03-08), the Web UI's (wire contract 5), the published SDK's, and those of
BEP-1016 (peer facts 1.2)."""


class ServicePort(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    protocol: str
    ports: list[int] = []


class CreatedSession(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to a creation: ``sessId`` is the session's name, as in the spec, ``sessionId`` its id, as in the
    published client."""

    sessionId: str  # noqa: N815  # the wire's name
    sessId: str  # noqa: N815  # the wire's name
    name: str
    status: str
    status_info: str | None
    servicePorts: list[ServicePort]  # noqa: N815  # the wire's name
    created: bool


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The reply about a session: ``age`` and ``cpuCreditUsed`` in ms, ``memoryLimit`` in KiB (spec 03-08)."""

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
    device_requests: list[str]
    plugin_options: dict[str, dict[str, Any]]
    claim: str | None
    diagnosed_devices: dict[str, list[str]]
    environ: dict[str, str]
    resource_opts: dict[str, str]
    service_ports: list[ServicePort]
    startup_command: str | None
    created_at: str
    started_at: str | None
    terminated_at: str | None


class DestroyedSession(TypedDict):
    """The reply to the end of a session: ``stats`` for the published client, ``containerStats`` of the manual."""

    stats: dict[str, Any]
    containerStats: dict[str, int]
    status: str
    destroyed: list[str]


class MatchedSession(TypedDict):
    id: str
    name: str
    status: str


class MatchedSessions(TypedDict):
    matches: list[MatchedSession]


class StatusHistory(TypedDict):
    """Status in lower case -> ISO time of its last entry."""

    result: dict[str, str | None]


class MetricHistory(TypedDict):
    """The histories of the kernels of a session, by their ids."""

    kernels: dict[str, MetricSeries]


class DependencyTree(TypedDict):
    """A session and what it depends on; ``status`` is ``KernelStatus.X``, for the published tree printer."""

    session_id: str
    session_name: str
    status: str
    status_changed: str
    depends_on: list[DependencyTree]


class SlotAuditReply(TypedDict):
    """The result of a recount. ``drift``: by agent, the recorded slots and the slots that its kernels hold."""

    drift: dict[str, dict[str, dict[str, str]]]
    orphans: list[str]


class DestroyQuery(Schema, frozen=True):
    forced: bool = False
    recursive: bool = False


class RenameQuery(Schema, frozen=True):
    name: SessionName


class MatchQuery(Schema, frozen=True):
    """The query of a match; ``id`` is the beginning of a name or id."""

    id: Annotated[str, Meta(min_length=1, max_length=64)]
