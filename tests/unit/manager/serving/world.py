"""A manager's surroundings in memory: sessions, agents, the coordinator, probes. Time passes when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

from ai.backend.common.errors import BackendError, Unavailable
from ai.backend.common.ids import AccessKey, AgentId, DomainName, GroupId, ResourceGroupName, SessionId, UserId
from ai.backend.common.serving import ReplicaStatus, ServedRevisionStatus
from ai.backend.common.states import SessionStatus, UserRole
from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import EndpointLoad, EndpointLoads, RouteInfo, ServingOptions, UsageRow
from ai.backend.common.wire.execution import OpenRoute, RouteOpened
from ai.backend.core.serving.autoscale import MetricSource
from ai.backend.core.serving.model import RolloutPolicy
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.resource_groups.model import ResourceGroup
from ai.backend.manager.serving.gauges import EngineReader, Gauges, MetricReader
from ai.backend.manager.serving.loads import Autoscaler
from ai.backend.manager.serving.loop import ServingLoop
from ai.backend.manager.serving.memory import MemoryServingStore
from ai.backend.manager.serving.model import (
    Endpoint,
    HealthCheck,
    Revision,
    RevisionSpec,
    ServedModel,
    Service,
    ServingChange,
)
from ai.backend.manager.serving.probes import Prober
from ai.backend.manager.serving.samples import RevisionSamples
from ai.backend.manager.serving.service import event_of
from ai.backend.manager.sessions.model import CreateSession, Session
from tests.contract.store.builders import make_session

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ENDPOINT = UUID(int=1)
OWNER = Caller(
    user_id=UserId(UUID(int=8)),
    email="user@local",
    username="user",
    role=UserRole.USER,
    domain_name=DomainName("default"),
    access_key=AccessKey("AKIAEXAMPLE"),
    is_admin=False,
    resource_policy="default",
    rate_limit=0,
)


class Killed(BaseException):
    """The manager was killed here."""


class SteppedClock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.passed_s)

    def monotonic(self) -> float:
        return self.passed_s


class CountedIds:
    def __init__(self) -> None:
        self._count = 100

    def uuid(self) -> UUID:
        self._count += 1
        return UUID(int=self._count)


def make_spec(command: str = "serve", **changes: Any) -> RevisionSpec:
    health = HealthCheck(interval=1.0, max_retries=2, initial_delay=30.0)
    served = ServedModel(name="m", path="/models", command=command, port=8000, health=health)
    return RevisionSpec(image="python", model="folder", served=served, **changes)


def make_service(*, desired: int = 1, policy: RolloutPolicy | None = None) -> Service:
    endpoint = Endpoint(
        id=ENDPOINT,
        name="my-service",
        active_name="my-service",
        domain_name=OWNER.domain_name,
        group_id=GroupId(UUID(int=7)),
        group_name="default",
        user_id=OWNER.user_id,
        user_email=OWNER.email,
        access_key=OWNER.access_key,
        created_by=OWNER.access_key,
        resource_group=ResourceGroupName("default"),
        desired=desired,
        policy=policy or RolloutPolicy(drain_s=5.0),
        created_at=NOW,
        changed_at=NOW,
    )
    return Service(endpoint=endpoint, revisions=(make_revision(1),))


def make_revision(number: int, **changes: Any) -> Revision:
    values: dict[str, Any] = {"status": ServedRevisionStatus.PENDING, "spec": make_spec(f"serve {number}"), **changes}
    return Revision(
        id=UUID(int=10 + number), endpoint_id=ENDPOINT, number=number, created_at=NOW, changed_at=NOW, **values
    )


@dataclass
class World:
    """Everything outside of the loop. ``healthy`` says by the command of a session whether its probes pass."""

    store: MemoryServingStore = field(default_factory=MemoryServingStore)
    clock: SteppedClock = field(default_factory=SteppedClock)
    ids: CountedIds = field(default_factory=CountedIds)
    sessions: dict[SessionId, Session] = field(default_factory=dict)
    created: list[SessionId] = field(default_factory=list)
    held_requests: int | None = None
    endpoint_id: UUID = ENDPOINT
    load: EndpointLoad | None = None
    reports: list[UsageRow] = field(default_factory=list)
    asked_loads: int = 0
    open_requests: Mapping[UUID, int] | None = None
    routes: list[RouteInfo] | None = None
    served: list[list[RouteInfo]] = field(default_factory=list)
    healthy: Callable[[Session], bool] = lambda _: True
    refusal: BackendError | None = None
    is_coordinator_away: bool = False
    is_owner_active: bool = True
    page: str | None = ""
    pages: dict[SessionId, str | None] = field(default_factory=dict)
    readers: dict[MetricSource, MetricReader] = field(default_factory=dict)
    loop: ServingLoop = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A new process of the manager on what is stored."""
        self.prober = Prober(self, self.clock, lambda: None)
        gauges = Gauges({MetricSource.INFERENCE_FRAMEWORK: EngineReader(self), **self.readers}, cast(Any, self.clock))
        self.autoscaler = Autoscaler(self, cast(Any, self.clock), lambda: None, gauges)
        self.samples = RevisionSamples()
        self.loop = ServingLoop(
            store=self.store,
            sessions=cast(Any, self),
            creation=cast(Any, self),
            writer=cast(Any, self),
            identity=cast(Any, self),
            resource_groups=cast(Any, self),
            coordinators=self,
            gateway=cast(Any, self),
            prober=self.prober,
            autoscaler=self.autoscaler,
            samples=self.samples,
            clock=cast(Any, self.clock),
            id_generator=cast(Any, self.ids),
        )

    # ---- sessions ----

    async def get_many(self, ids: Iterable[SessionId]) -> list[Session]:
        return [self.sessions[each] for each in ids if each in self.sessions]

    async def get_log(self, _kernel: UUID) -> bytes | None:
        return b"starting\nout of memory\n\n"

    async def create(self, _owner: Caller, request: CreateSession, *, call_id: UUID) -> None:
        if self.refusal is not None:
            raise self.refusal
        session_id = SessionId(call_id)
        if session_id in self.sessions:
            return
        session = make_session(str(request.name), id=session_id, startup_command=request.startup_command)
        kernels = (replace(session.kernels[0], agent=AgentId("i-1")),)
        self.sessions[session_id] = replace(session, status=SessionStatus.PENDING, kernels=kernels)
        self.created.append(session_id)

    async def apply(self, session_id: SessionId, _event: Any, _clock: Any, *, point: str) -> None:
        assert point == "commit-destroy"
        self.sessions[session_id] = replace(self.sessions[session_id], status=SessionStatus.TERMINATING)

    def end(self, session_id: SessionId) -> None:
        self.sessions[session_id] = replace(self.sessions[session_id], status=SessionStatus.TERMINATED)

    @property
    def live(self) -> list[Session]:
        return [each for each in self.sessions.values() if not each.status.is_final]

    # ---- the others ----

    async def credentials(self, _access_key: str) -> Any:
        @dataclass
        class Credentials:
            caller: Caller
            is_active: bool

        return Credentials(OWNER, self.is_owner_active)

    async def resource_group(self, name: str) -> ResourceGroup:
        return ResourceGroup(
            name=ResourceGroupName(name),
            description="",
            is_active=True,
            is_public=True,
            created_at=NOW,
            driver="static",
            driver_opts={},
            scheduler="fifo",
            scheduler_opts={},
            use_host_network=False,
            wsproxy_addr="http://coordinator",
            wsproxy_api_token="secret",
        )

    def agent(self, _agent_id: str) -> World:
        return self

    async def open_route(self, request: OpenRoute) -> RouteOpened:
        return RouteOpened(name=f"r{request.kernel_id}", host="node", port=6100, certificate="pem")

    async def authority(self, _coordinator: Any) -> str:
        return "authority"

    async def put_endpoint(
        self, _coordinator: Any, _endpoint: Endpoint, routes: Sequence[RouteInfo], serving: ServingOptions
    ) -> str:
        assert serving.models == ["m"]
        self.held_requests = serving.hold_requests
        if self.is_coordinator_away:
            raise Unavailable("the coordinator is away")
        self.routes = list(routes)
        self.served.append(self.routes)
        return "http://proxy/1"

    async def in_flight(self, _coordinator: Any, _endpoint: Endpoint) -> Mapping[UUID, int] | None:
        return self.open_requests

    async def loads(self, _coordinator: Any, *, since: int | None, wait_s: float) -> EndpointLoads:
        assert wait_s > 0
        self.asked_loads += 1
        if self.is_coordinator_away:
            raise Unavailable("the coordinator is away")
        return EndpointLoads(version=(since or 0) + 1, loads=[self.load] if self.load is not None else [])

    async def usage(self, _coordinator: Any, *, after: int, limit: int) -> Sequence[UsageRow]:
        if self.is_coordinator_away:
            raise Unavailable("the coordinator is away")
        return [row for row in self.reports if row.id > after][:limit]

    async def remove_endpoint(self, _coordinator: Any, _endpoint: Endpoint) -> None:
        if self.is_coordinator_away:
            raise Unavailable("the coordinator is away")
        self.routes = None

    async def endpoint_token(self, *_: Any) -> str:
        return "token"

    async def probe(self, session: Session, _replica: Any, *, port: int, path: str, timeout_s: float) -> int:
        assert (port, path, timeout_s) == (8000, "/health", 15.0)
        return 200 if self.healthy(session) else 503

    async def read(self, session: Session, *, port: int, path: str, timeout_s: float, max_bytes: int) -> bytes:
        assert (port, path) == (8000, "/metrics")
        page = self.pages.get(session.id, self.page)
        if page is None:
            raise Unavailable("it does not answer")
        return page.encode()

    # ---- running ----

    async def insert(self, service: Service) -> None:
        await self.store.insert(service, event_of(service.endpoint, NOW, "endpoint", {}), limit=10)

    async def service(self) -> Service:
        service = await self.store.get(self.endpoint_id)
        assert service is not None
        return service

    async def change(self, revisions: Sequence[Revision] = (), **values: Any) -> None:
        """A user's change of the endpoint."""
        endpoint = (await self.service()).endpoint
        change = ServingChange(version=endpoint.version, endpoint=replace(endpoint, **values), revisions=revisions)
        await self.store.save(change)

    async def round(self) -> None:
        """One second: sessions start and end, the loop runs, probes run."""
        self.clock.passed_s += 1.0
        following = {
            SessionStatus.PENDING: SessionStatus.RUNNING,
            SessionStatus.TERMINATING: SessionStatus.TERMINATED,
        }
        self.sessions = {
            key: replace(each, status=following.get(each.status, each.status)) for key, each in self.sessions.items()
        }
        await self.loop.once()
        await self.loop.finish_round()
        await self.autoscaler.finish_round()
        await self.prober.finish_round()

    async def until(self, condition: Callable[[Service], bool], *, rounds: int = 60) -> Service:
        for _ in range(rounds):
            service = await self.service()
            if condition(service):
                return service
            await self.round()
        raise AssertionError(f"not after {rounds} rounds: {await self.service()}")


def ready(service: Service, number: int | None = None) -> int:
    """How many replicas are ready, of the revision of a number."""
    return sum(
        each.status is ReplicaStatus.READY and number in (None, service.revision(each.revision_id).number)
        for each in service.replicas
    )
