"""Requests and replies of model services on the wire (client wire contract 2.8)."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import msgspec
from msgspec import Meta

from ai.backend.common.states import ClusterMode
from ai.backend.core.serving.autoscale import Comparator, MetricSource
from ai.backend.infra.http.fields import LongText, Path, Port, Word
from ai.backend.infra.http.routes import Schema
from ai.backend.manager.serving.model import UseGrouping
from ai.backend.manager.sessions.schemas import DeviceRequestText, Environ, Quantity, Variant

_Model = Annotated[str, Meta(min_length=1, max_length=512)]
ModelName = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[!-~]+$")]
_Count = Annotated[int, Meta(ge=0, le=1_024)]
_Policy = dict[str, Any]
_ClaimName = Annotated[str, Meta(max_length=64)]
_Variants = Annotated[list[Variant], Meta(max_length=32)]
_DeviceRequests = Annotated[list[DeviceRequestText], Meta(max_length=8)]
_LAST_SECOND = 253_402_300_799
"""Unix time of the end of the year 9999, the last one of a datetime."""


class ServiceConfig(Schema, frozen=True):
    """The part ``config`` of a creation. ``model`` is a folder, or an artifact as ``artifact:NAME``. A
    ``model_definition_path`` is relative to the folder; ``model_name`` chooses one of the models of the definition.
    ``claim`` is the name of a device claim, which provides the accelerators. ``variant_requirements`` and
    ``device_requests`` say what the devices of each replica must be, as those of a session do."""

    model: _Model
    model_version: str | int | None = None
    model_definition_path: Path | None = None
    model_name: ModelName | None = None
    model_mount_destination: Path = "/models"
    environ: Environ | None = None
    scaling_group: Word | None = None
    resources: Annotated[dict[str, Quantity], Meta(max_length=64)] | None = None
    resource_opts: Annotated[dict[str, Quantity | bool], Meta(max_length=64)] | None = None
    claim: _ClaimName | None = None
    variant_requirements: _Variants | None = None
    device_requests: _DeviceRequests | None = None


class CreateServiceBody(Schema, frozen=True):
    """The body of a creation and of a trial. ``policy`` says how later revisions are rolled out, see the how-to."""

    name: Annotated[str, Meta(min_length=4, max_length=48)]
    image: Word
    config: ServiceConfig
    desired_session_count: _Count = 1
    arch: Word | None = None
    group: Word | None = None
    domain: Word | None = None
    cluster_size: Annotated[int, Meta(ge=1, le=1_024)] = 1
    cluster_mode: ClusterMode = ClusterMode.SINGLE_NODE
    runtime_variant: Word = "custom"
    tag: Annotated[str, Meta(max_length=64)] | None = None
    startup_command: LongText | None = None
    bootstrap_script: LongText | None = None
    callback_url: Annotated[str, Meta(max_length=2_048, pattern="^https?://")] | None = None
    owner_access_key: Word | None = None
    open_to_public: bool = False
    port: Port | None = None
    policy: _Policy | None = None


CREATE_ALIASES = {
    "service_name": "name",
    "replicas": "desired_session_count",
    **dict.fromkeys(("desiredSessionCount", "to"), "desired_session_count"),
    **dict.fromkeys(("architecture",), "arch"),
    **dict.fromkeys(("group_name", "groupName"), "group"),
    **dict.fromkeys(("domain_name", "domainName"), "domain"),
    "clusterSize": "cluster_size",
    "clusterMode": "cluster_mode",
    "startupCommand": "startup_command",
    "config.scalingGroup": "config.scaling_group",
}
"""Other spellings of fields: those of later releases of the published client, and of the Web UI."""


class ModifyServiceBody(Schema, frozen=True):
    """Changes of an endpoint; an absent field is not changed, and null gives a field the default of a creation. A
    null ``environ`` removes the secrets too. Any field from ``image`` on makes a new revision, which is rolled out as
    ``policy`` says. An empty ``claim`` is none, as null is; so are empty ``variant_requirements`` and
    ``device_requests``."""

    name: Annotated[str, Meta(min_length=4, max_length=48)] | msgspec.UnsetType = msgspec.UNSET
    desired_session_count: _Count | msgspec.UnsetType = msgspec.UNSET
    open_to_public: bool | msgspec.UnsetType = msgspec.UNSET
    policy: _Policy | msgspec.UnsetType = msgspec.UNSET
    image: Word | msgspec.UnsetType = msgspec.UNSET
    architecture: Word | msgspec.UnsetType | None = msgspec.UNSET
    model: _Model | msgspec.UnsetType = msgspec.UNSET
    model_version: str | msgspec.UnsetType | None = msgspec.UNSET
    model_definition_path: Path | msgspec.UnsetType | None = msgspec.UNSET
    model_name: ModelName | msgspec.UnsetType | None = msgspec.UNSET
    model_mount_destination: Path | msgspec.UnsetType | None = msgspec.UNSET
    runtime_variant: Word | msgspec.UnsetType | None = msgspec.UNSET
    environ: Environ | msgspec.UnsetType | None = msgspec.UNSET
    resources: Annotated[dict[str, Quantity], Meta(max_length=64)] | msgspec.UnsetType | None = msgspec.UNSET
    resource_opts: Annotated[dict[str, Quantity | bool], Meta(max_length=64)] | msgspec.UnsetType | None = msgspec.UNSET
    tag: Annotated[str, Meta(max_length=64)] | msgspec.UnsetType | None = msgspec.UNSET
    startup_command: LongText | msgspec.UnsetType | None = msgspec.UNSET
    bootstrap_script: LongText | msgspec.UnsetType | None = msgspec.UNSET
    port: Port | msgspec.UnsetType | None = msgspec.UNSET
    claim: _ClaimName | msgspec.UnsetType | None = msgspec.UNSET
    variant_requirements: _Variants | msgspec.UnsetType | None = msgspec.UNSET
    device_requests: _DeviceRequests | msgspec.UnsetType | None = msgspec.UNSET


class ScaleBody(Schema, frozen=True):
    to: _Count


class TrafficRatioBody(Schema, frozen=True):
    traffic_ratio: Annotated[float, Meta(ge=0, le=1_000)]


class TokenBody(Schema, frozen=True):
    """``duration`` is as ``1d`` or ``3600s``; ``valid_until`` is unix time."""

    duration: Annotated[str, Meta(max_length=32)] | float | None = None
    valid_until: Annotated[int, Meta(ge=0, le=_LAST_SECOND)] | None = None


class ListServicesQuery(Schema, frozen=True):
    name: Word | None = None


class HistoryQuery(Schema, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    offset: Annotated[int, Meta(ge=0)] = 0


MetricText = Annotated[str, Meta(min_length=1, max_length=128)]
_Seconds = Annotated[float, Meta(ge=0, le=86_400)]


class TargetBody(Schema, frozen=True):
    """The load that one replica is to have, averaged over ``stable_s``; in a burst over ``panic_s``."""

    target: Annotated[float, Meta(gt=0, le=1e9)]
    metric: MetricText = "load"
    metric_source: MetricSource = MetricSource.PROXY
    stable_s: Annotated[float, Meta(ge=6, le=3_600)] = 60.0
    panic_s: Annotated[float, Meta(ge=2, le=3_600)] = 6.0
    panic_ratio: Annotated[float, Meta(ge=1, le=1_000)] = 2.0
    max_up: Annotated[float, Meta(gt=1, le=1_000)] = 1_000.0
    max_down: Annotated[float, Meta(gt=1, le=1_000)] = 2.0
    tolerance: Annotated[float, Meta(ge=0, le=1)] = 0.1


class ScalingBody(Schema, frozen=True):
    """Settings of autoscaling; an absent field is not changed, and has at first its default. With ``min_replicas`` 0
    the endpoint has no replica after ``idle_s`` seconds without a request, and the next request starts one. A null
    ``target`` ends autoscaling by a target.
    ``down_delay_s``: for so long the largest number that was advised counts."""

    min_replicas: _Count | msgspec.UnsetType = msgspec.UNSET
    max_replicas: _Count | msgspec.UnsetType = msgspec.UNSET
    target: TargetBody | msgspec.UnsetType | None = msgspec.UNSET
    idle_s: Annotated[float, Meta(ge=1, le=30 * 86_400)] | msgspec.UnsetType = msgspec.UNSET
    down_delay_s: Annotated[float, Meta(ge=0, le=3_600)] | msgspec.UnsetType = msgspec.UNSET


class ScalingRuleBody(Schema, frozen=True):
    """A rule of the published client: while the mean of the metric over replicas compares so with the threshold,
    ``step_size`` replicas are added, at most once in ``cooldown_seconds``; a negative one removes replicas."""

    metric_name: MetricText
    threshold: Decimal
    comparator: Comparator
    step_size: Annotated[int, Meta(ge=-1_024, le=1_024)]
    cooldown_seconds: _Seconds = 300.0
    metric_source: MetricSource = MetricSource.PROXY
    min_replicas: _Count | None = None
    max_replicas: _Count | None = None


class ModifyScalingRuleBody(Schema, frozen=True):
    """Changes of a rule; an absent field is not changed, and null removes a bound."""

    metric_name: MetricText | msgspec.UnsetType = msgspec.UNSET
    threshold: Decimal | msgspec.UnsetType = msgspec.UNSET
    comparator: Comparator | msgspec.UnsetType = msgspec.UNSET
    step_size: Annotated[int, Meta(ge=-1_024, le=1_024)] | msgspec.UnsetType = msgspec.UNSET
    cooldown_seconds: _Seconds | msgspec.UnsetType = msgspec.UNSET
    metric_source: MetricSource | msgspec.UnsetType = msgspec.UNSET
    min_replicas: _Count | msgspec.UnsetType | None = msgspec.UNSET
    max_replicas: _Count | msgspec.UnsetType | None = msgspec.UNSET


class RouteItem(TypedDict):
    """A replica: its route and its session have the same id."""

    route_id: UUID
    session_id: UUID
    traffic_ratio: float
    status: str
    reason: str
    detail: str | None
    revision: int


class RevisionItem(TypedDict):
    """A revision. ``step`` of its roll-out: of a canary from 0, or 1 while a blue-green one is watched."""

    id: UUID
    number: int
    status: str
    reason: str
    image: str
    model_name: str
    weight: float
    step: int
    step_since: str | None
    created_at: str


class ServiceItem(TypedDict):
    """An endpoint in a list. ``service_endpoint`` is its URL, null before a replica was ready."""

    id: UUID
    name: str
    status: str
    desired_session_count: int
    replicas: int
    active_route_count: int
    service_endpoint: str | None
    is_public: bool


class ServiceReply(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint with its replicas that have not ended, and its revisions, newest first. ``tokens_per_s`` are those of
    prompts and answers in this hour and the one before; null in replies to changes. What replicas are made of is that
    of the active revision, else of the newest: ``served_model`` is the model that was chosen of the definition,
    ``secret_names`` are the variables of the environment whose values are not shown."""

    endpoint_id: UUID
    name: str
    status: str
    reason: str
    model_id: str
    model_name: str
    model_version: str | None
    model_definition_path: str | None
    model_mount_destination: str
    image: str
    architecture: str | None
    runtime_variant: str
    served_model: str | None
    startup_command: str | None
    bootstrap_script: str | None
    port: int | None
    environ: dict[str, str]
    secret_names: list[str]
    resources: dict[str, str]
    resource_opts: dict[str, str]
    cluster_size: int
    cluster_mode: ClusterMode
    tag: str | None
    desired_session_count: int
    replicas: int
    active_routes: list[RouteItem]
    revisions: list[RevisionItem]
    service_endpoint: str | None
    is_public: bool
    domain: str
    project: str
    resource_group: str
    created_at: str
    claim: str | None
    variant_requirements: list[str]
    device_requests: list[str]
    policy: dict[str, Any]
    tokens_per_s: float | None


class ScalingRuleItem(TypedDict):
    id: UUID
    metric_source: str
    metric_name: str
    threshold: str
    comparator: str
    step_size: int
    cooldown_seconds: float
    min_replicas: int | None
    max_replicas: int | None
    created_at: str
    last_triggered_at: str | None


class ScalingNoteItem(TypedDict):
    """The last decision that changed the number of replicas, and the inputs that it follows from."""

    at: str
    before: int
    desired: int
    reason: str
    explanation: str
    inputs: dict[str, float | int | str | None]


class TargetItem(TypedDict):
    metric: str
    metric_source: str
    target: float
    stable_s: float
    panic_s: float
    panic_ratio: float
    max_up: float
    max_down: float
    tolerance: float


class ScalingReply(msgspec.Struct, frozen=True, kw_only=True):
    """How an endpoint is scaled by its load. Without autoscaling the settings are null and there are no rules."""

    desired_session_count: int
    is_enabled: bool
    min_replicas: int | None
    max_replicas: int | None
    idle_s: float | None
    down_delay_s: float | None
    target: TargetItem | None
    rules: list[ScalingRuleItem]
    last_decision: ScalingNoteItem | None


class WhyReply(msgspec.Struct, frozen=True, kw_only=True):
    """Why an endpoint is as it is: what the last plan does, what cannot be done, the reason of each replica,
    and what those that are not ready wait for."""

    name: str
    status: str
    reason: str
    explanation: str
    problem: str | None
    replicas: list[RouteItem]
    obstacles: dict[str, str]
    autoscaling: ScalingReply


class EventItem(TypedDict):
    at: str
    subject: str
    status: str
    reason: str
    detail: str | None
    data: dict[str, Any]


class HistoryReply(TypedDict):
    events: list[EventItem]


class TokenReply(TypedDict):
    token: str


class SuccessReply(TypedDict):
    success: Literal[True]


class ScaledReply(TypedDict):
    success: Literal[True]
    current_route_count: int
    target_count: int


class TrialReply(TypedDict):
    task_id: UUID


class VariantItem(TypedDict):
    name: str
    title: str
    command: list[str] | None
    health_path: str


class VariantsReply(TypedDict):
    runtimes: list[VariantItem]


class UsageQuery(Schema, frozen=True):
    """A period in unix time, by default the last 30 days, and by what the use is summed up."""

    since: Annotated[int, Meta(ge=0, le=_LAST_SECOND)] | None = None
    until: Annotated[int, Meta(ge=0, le=_LAST_SECOND)] | None = None
    by: UseGrouping = UseGrouping.DAY
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1_000


class UseItem(TypedDict):
    """``busy_s`` is the time of all requests; the tokens of ``estimated_requests`` are estimates. ``tokens_per_s`` are
    those of prompts and answers in the part of the period that is over."""

    requests: int
    errors: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    estimated_requests: int
    busy_s: float
    tokens_per_s: float


class UseGroupItem(UseItem):
    """``key`` is an id, a hash of a token, or the time at which an hour or a day begins; null where it is not known.
    ``name`` is that of the endpoint, or the number of the revision."""

    key: str | None
    name: str | None


class UsageReply(TypedDict):
    """The use in whole hours from ``since`` to ``until``. ``total`` is that of all groups, beyond the limit too."""

    since: str
    until: str
    by: UseGrouping
    groups: list[UseGroupItem]
    total: UseItem
