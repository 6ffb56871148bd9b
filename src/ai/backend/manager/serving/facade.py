"""Builds the use cases and loops of model services, and holds them in one object."""

from __future__ import annotations

import msgspec

from ai.backend.common.states import RUNNING_SESSION_STATUSES
from ai.backend.core.serving.autoscale import MetricSource
from ai.backend.infra.bus import Bus
from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.manager.agents.store import AgentGateway
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.metrics.live import LiveMetrics
from ai.backend.manager.resource_groups.store import ResourceGroupStore
from ai.backend.manager.secrets.sealer import Sealer
from ai.backend.manager.serving.claims import ReplicaClaims
from ai.backend.manager.serving.gateway import EndpointCoordinators, ModelFolders
from ai.backend.manager.serving.gauges import EngineReader, Gauges, KernelReader, MetricReader, PrometheusReader
from ai.backend.manager.serving.loads import Autoscaler
from ai.backend.manager.serving.loop import ServingLoop
from ai.backend.manager.serving.model import Service
from ai.backend.manager.serving.probes import AgentProbe, Prober
from ai.backend.manager.serving.revisions import RevisionBuilder
from ai.backend.manager.serving.samples import RevisionSamples
from ai.backend.manager.serving.scaling import ScalingService
from ai.backend.manager.serving.service import ServingService
from ai.backend.manager.serving.settings import ServingSettings
from ai.backend.manager.serving.store import EndpointUsageStore, ServingStore
from ai.backend.manager.serving.trials import TrialService
from ai.backend.manager.serving.usage import UsageLoop, UsageService
from ai.backend.manager.sessions.service import SessionService
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.sessions.writer import SessionWriter
from ai.backend.manager.tasks.service import TaskService


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the services, the loops and the prober of model services."""

    service: ServingService
    scaling: ScalingService
    trials: TrialService
    usage: UsageService
    loop: ServingLoop
    usage_loop: UsageLoop
    prober: Prober
    sessions: SessionStore

    async def obstacles(self, service: Service) -> dict[str, str]:
        """Returns, by the id of each replica that does not serve, why its session does not run or why its last probe
        failed. Only the manager that runs the loop knows the results of probes.
        """
        replicas = service.live_replicas
        reason_of_replica = {str(replica.id): self.prober.error_of(replica.id) for replica in replicas}
        for session in await self.sessions.get_many(replica.id for replica in replicas):
            if session.status not in RUNNING_SESSION_STATUSES:
                reason = f"its session is {session.status.value}"
                reason_of_replica[str(session.id)] = (
                    f"{reason}: {session.status_info}" if session.status_info else reason
                )
        return {replica_id: reason for replica_id, reason in reason_of_replica.items() if reason}

    @classmethod
    def build(
        cls,
        *,
        store: ServingStore,
        usage: EndpointUsageStore,
        sessions: SessionStore,
        creation: SessionService,
        writer: SessionWriter,
        folders: ModelFolders,
        identity: IdentityService,
        resource_groups: ResourceGroupStore,
        coordinators: EndpointCoordinators,
        gateway: AgentGateway,
        tasks: TaskService,
        bus: Bus,
        clock: Clock,
        id_generator: IdGenerator,
        settings: ServingSettings,
        sealer: Sealer,
        stats: LiveMetrics,
    ) -> Serving:
        """Builds the services and loops of model services from stores, session services and gateways."""
        probe = AgentProbe(gateway)
        prober = Prober(probe, clock, lambda: None)
        service = ServingService(
            store=store,
            revisions=RevisionBuilder(folders=folders, factory=creation.factory, sealer=sealer),
            coordinators=coordinators,
            resource_groups=resource_groups,
            identity=identity,
            claims=ReplicaClaims(creation.factory),
            bus=bus,
            clock=clock,
            id_generator=id_generator,
            settings=settings,
        )
        samples = RevisionSamples()
        readers: dict[MetricSource, MetricReader] = {
            MetricSource.INFERENCE_FRAMEWORK: EngineReader(probe),
            MetricSource.KERNEL: KernelReader(stats),
        }
        if settings.prometheus_url is not None:
            readers[MetricSource.PROMETHEUS] = PrometheusReader(settings)
        loop = ServingLoop(
            store=store,
            sessions=sessions,
            creation=creation,
            writer=writer,
            identity=identity,
            resource_groups=resource_groups,
            coordinators=coordinators,
            gateway=gateway,
            prober=prober,
            autoscaler=Autoscaler(coordinators, clock, lambda: None, Gauges(readers, clock)),
            samples=samples,
            clock=clock,
            id_generator=id_generator,
        )
        scaling = ScalingService(services=service)
        trials = TrialService(
            services=service, sessions=creation, writer=writer, identity=identity, probe=probe, tasks=tasks, clock=clock
        )
        usage_loop = UsageLoop(
            store=usage,
            services=store,
            resource_groups=resource_groups,
            coordinators=coordinators,
            clock=clock,
            settings=settings,
            samples=samples,
        )
        return cls(
            service=service,
            scaling=scaling,
            trials=trials,
            usage=UsageService(usage, service, clock),
            loop=loop,
            usage_loop=usage_loop,
            prober=prober,
            sessions=sessions,
        )
