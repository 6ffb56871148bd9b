"""Defines endpoints with their revisions, replicas, scaling rules, tokens and use.

An :class:`Endpoint` with its revisions and replicas is one aggregate, guarded by the endpoint's ``version``. A replica
is a session of type inference; both have the same id, so that a session is created once whoever was killed meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from ai.backend.common.ids import AccessKey, DomainName, GroupId, ResourceGroupName, SessionId, UserId
from ai.backend.common.serving import EndpointStatus, ReplicaStatus, ServedRevisionStatus, ServingReason
from ai.backend.common.states import ClusterMode
from ai.backend.core.serving.autoscale import ScalingPolicy, ScalingRule
from ai.backend.core.serving.model import RolloutPolicy
from ai.backend.manager.query.model import ListQuery

KEPT_REVISIONS = 16
"""The number of ended revisions of an endpoint that are kept, so that they can be rolled out again."""
KEPT_REPLICAS = 64
"""The number of ended replicas of an endpoint that are kept for ``service why``."""


class HealthCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Describes how a replica is probed: by a GET of ``path`` every ``interval`` seconds. The replica must answer
    ``expected_status_code`` within ``max_wait_time`` seconds. ``max_retries`` failures in a row make it unhealthy;
    failures of a replica that was never ready count only ``initial_delay`` seconds after its session has started.
    """

    path: str = "/health"
    interval: float = 10.0
    max_retries: int = 10
    max_wait_time: float = 15.0
    expected_status_code: int = 200
    initial_delay: float = 60.0


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the server of a replica: ``command`` is a shell command, ``port`` its port on 127.0.0.1.

    Without a ``port`` each replica gets one of its own, by which replicas do not disturb each other on nodes whose
    sessions share a network; ``{port}`` in the command and in ``environ`` stands for it.
    """

    name: str
    path: str
    command: str
    port: int | None = None
    health: HealthCheck = HealthCheck()
    environ: dict[str, str] = {}


_FIRST_PORT, _PORTS = 20_000, 12_000
_PORT_PLACEHOLDER = re.compile(r"(?<!\$)\{port\}")


def port_of(served: ServedModel, replica_id: UUID) -> int:
    """Returns the port on which the server of a replica listens."""
    return served.port or _FIRST_PORT + replica_id.int % _PORTS


def with_port(text: str, port: int) -> str:
    """Returns a text in which the port replaces ``{port}``, but not the ``${port}`` of a shell."""
    return _PORT_PLACEHOLDER.sub(str(port), text)


class RevisionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the sessions and the server of the replicas of a revision. ``model`` is the name or id of a folder, or
    an artifact as ``artifact:NAME[@VERSION]``; ``environ`` is the user's, and :attr:`ServedModel.environ` is added to
    it. ``sealed_environ`` are the user's secrets, which nobody is shown.
    """

    image: str
    architecture: str | None = None
    model: str
    model_version: str | None = None
    model_definition_path: str | None = None
    model_name: str | None = None
    model_mount_destination: str = "/models"
    runtime_variant: str = "custom"
    served: ServedModel
    environ: dict[str, str] = {}
    sealed_environ: dict[str, str] = {}
    resources: dict[str, str] = {}
    resource_opts: dict[str, str] = {}
    cluster_size: int = 1
    cluster_mode: ClusterMode = ClusterMode.SINGLE_NODE
    tag: str | None = None
    startup_command: str | None = None
    bootstrap_script: str | None = None
    callback_url: str | None = None
    claim: str | None = None
    variant_requirements: tuple[str, ...] = ()
    device_requests: tuple[str, ...] = ()


class ReplicaRoute(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the address at which a worker of the app proxy reaches a replica, see
    ``common.wire.execution.RouteOpened``.
    """

    name: str
    host: str
    port: int
    certificate: str | None = None


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """Represents one version of what an endpoint serves, numbered from 1.

    Attributes:
        failures, failed_at: failed replicas since one became ready last, and the last of them.
        step, step_since: the step of its roll-out (``core.serving.model.RolloutSnapshot``), and since when;
            ``changed_at`` of a revision that is rolled out is when that began.
        weight: its share in the requests by the last plan; any sum.
    """

    id: UUID
    endpoint_id: UUID
    number: int
    status: ServedRevisionStatus
    reason: ServingReason = ServingReason.CREATED
    spec: RevisionSpec
    failures: int = 0
    failed_at: datetime | None = None
    step: int = 0
    step_since: datetime | None = None
    weight: float = 0.0
    created_at: datetime
    changed_at: datetime


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """Represents a replica of a revision, which is the session of the same id.

    Attributes:
        traffic_ratio: its weight within its revision; 0 keeps it without requests.
        detail: more about the reason, as an error of its session.
        route: where it is reached, once it is known.
        started_at, ready_at: when its session ran, and when it was ready for the first time.
    """

    id: SessionId
    endpoint_id: UUID
    revision_id: UUID
    status: ReplicaStatus = ReplicaStatus.PROVISIONING
    reason: ServingReason = ServingReason.CREATED
    detail: str | None = None
    traffic_ratio: float = 1.0
    route: ReplicaRoute | None = None
    created_at: datetime
    changed_at: datetime
    started_at: datetime | None = None
    ready_at: datetime | None = None


class AutoscalingRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule of an endpoint's autoscaling."""

    id: UUID
    endpoint_id: UUID
    rule: ScalingRule
    created_at: datetime


class ScalingNote(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the last decision that changed the number of replicas, with the inputs of the decision."""

    at: datetime
    before: int
    desired: int
    reason: ServingReason
    explanation: str
    inputs: Mapping[str, float | int | str | None] = msgspec.field(default_factory=dict)
    triggered: tuple[UUID, ...] = ()


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A model service.

    Attributes:
        version: grows with every write; a writer states the one it read.
        active_name: the name while it lives, None when it is destroyed, so that its name is free again.
        desired: replicas that are wanted, by its user or by autoscaling.
        url: where it is called; None until its circuit exists.
        published: digest of the routes that the coordinator has; differs while they are to be sent.
        policy: how a new revision takes the place of the old one.
        scaling: how ``desired`` follows the load, without the rules; None: only users change it.
        scaled: the last change of ``desired`` by autoscaling.
        explanation: what the last plan does, in a sentence; ``problem``: why it could not be carried out.
    """

    id: UUID
    name: str
    active_name: str | None
    version: int = 1
    status: EndpointStatus = EndpointStatus.PROVISIONING
    reason: ServingReason = ServingReason.CREATED
    domain_name: DomainName
    group_id: GroupId
    group_name: str
    user_id: UserId
    user_email: str
    access_key: AccessKey
    created_by: AccessKey
    resource_group: ResourceGroupName
    open_to_public: bool = False
    desired: int
    url: str | None = None
    published: str = ""
    policy: RolloutPolicy = msgspec.field(default_factory=RolloutPolicy)
    scaling: ScalingPolicy | None = None
    scaled: ScalingNote | None = None
    explanation: str = ""
    problem: str | None = None
    created_at: datetime
    changed_at: datetime
    destroyed_at: datetime | None = None

    @property
    def is_live(self) -> bool:
        return self.active_name is not None


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """Holds an endpoint with its revisions (newest first), replicas and scaling rules (both oldest first)."""

    endpoint: Endpoint
    revisions: tuple[Revision, ...]
    replicas: tuple[Replica, ...] = ()
    rules: tuple[AutoscalingRule, ...] = ()

    def revision(self, revision_id: UUID) -> Revision:
        return next(revision for revision in self.revisions if revision.id == revision_id)

    @property
    def current(self) -> Revision:
        """Returns the revision that is shown for the endpoint: the active revision, or the newest if none is active."""
        active_revisions = (each for each in self.revisions if each.status is ServedRevisionStatus.ACTIVE)
        return next(active_revisions, self.revisions[0])

    @property
    def live_replicas(self) -> tuple[Replica, ...]:
        return tuple(each for each in self.replicas if each.status is not ReplicaStatus.TERMINATED)


class ServingEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Represents a change of an endpoint, as ``service history`` shows it. ``subject`` is ``endpoint``, ``revision 2``
    or ``replica 1a2b3c4d``; ``data`` are the inputs of a decision.
    """

    endpoint_id: UUID
    at: datetime
    subject: str
    status: str
    reason: str
    detail: str | None = None
    data: Mapping[str, Any] = msgspec.field(default_factory=dict)


class EndpointToken(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a token of an endpoint by its maker and its expiry; the manager does not store the token itself."""

    id: UUID
    endpoint_id: UUID
    user_id: UserId
    domain_name: DomainName
    group_id: GroupId
    created_at: datetime
    valid_until: datetime


class ServingChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of one endpoint that is stored as a whole: its new fields, revisions, replicas, rules and events.

    ``endpoint`` replaces the stored one if that has ``version``. Revisions, replicas and rules are added or replaced,
    and ``dropped`` ones are deleted.
    """

    version: int
    endpoint: Endpoint
    revisions: Sequence[Revision] = ()
    replicas: Sequence[Replica] = ()
    rules: Sequence[AutoscalingRule] = ()
    dropped: Sequence[UUID] = ()
    events: Sequence[ServingEvent] = ()


class EndpointQuery(ListQuery, frozen=True, kw_only=True):
    """Selects endpoints, newest first; a field that is None does not restrict the selection.

    Destroyed endpoints are selected only with ``destroyed``.
    """

    user_id: UserId | None = None
    access_key: str | None = None
    domain_name: str | None = None
    group_id: UUID | None = None
    name: str | None = None
    destroyed: bool = False


class UseKey(NamedTuple):
    """Identifies the use of a replica by one token in one hour.

    ``hour`` is unix time divided by 3,600; ``token`` is a hash of the token's id, empty for requests without one;
    ``user_id`` is the user for whom the token was issued.
    """

    endpoint_id: UUID
    hour: int
    token: str
    user_id: UUID | None
    revision_id: UUID | None
    replica_id: UUID | None


class UseSums(msgspec.Struct, frozen=True, kw_only=True):
    """The sums of requests, errors, tokens and busy time over several requests to endpoints.

    ``estimated`` requests are those whose engine named no tokens; ``busy_ms`` is the time of all requests.
    """

    requests: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    estimated: int = 0
    busy_ms: int = 0

    def __add__(self, other: UseSums) -> UseSums:
        return UseSums(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class UseGrouping(StrEnum):
    """Names the property by which use is grouped and summed up, such as endpoint, user or day."""

    ENDPOINT = "endpoint"
    TOKEN = "token"
    USER = "user"
    PROJECT = "project"
    REVISION = "revision"
    REPLICA = "replica"
    HOUR = "hour"
    DAY = "day"


class UseQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the use in the hours from ``since`` to before ``until``; a field that is None does not restrict.
    ``user_id`` and ``domain_name`` are those of the endpoint's owner.
    """

    since: int
    until: int
    by: UseGrouping
    limit: int
    endpoint_id: UUID | None = None
    user_id: UserId | None = None
    domain_name: str | None = None


class UseGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the key and the sums of one group of use. ``key`` is an id, a hash of a token, or an hour or a day since
    1970; None where it is not known. ``name`` is that of an endpoint.
    """

    key: str | int | UUID | None
    name: str | None = None
    sums: UseSums


class UseReport(msgspec.Struct, frozen=True, kw_only=True):
    """Holds groups of use, and the total of all groups. Groups are sorted by tokens, most first, or by time. The total
    includes the groups beyond the limit.
    """

    groups: Sequence[UseGroup]
    total: UseSums
