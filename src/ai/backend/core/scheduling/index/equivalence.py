"""Groups pending sessions with equal requests, so that each request is evaluated only once."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field

from ai.backend.common.ids import SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import ClusterMode
from ai.backend.common.structs import replace
from ai.backend.core.allocation.requests.amounts import slots_of_alternative, slots_with_amounts
from ai.backend.core.allocation.requests.compiled import DeviceRequest
from ai.backend.core.scheduling.index.agents import AgentIndex, Demand, scarcity
from ai.backend.core.scheduling.plan import SkipReason
from ai.backend.core.scheduling.snapshot import PendingKernel, PendingSession

Verdict = tuple[SkipReason, str]
MAX_CLASSES = 4096
"""The largest number of cached classes."""


@dataclass(slots=True, eq=False)
class EquivalenceClass:
    """Describes which agents are feasible for a session. Sessions with equal requirements share a class.

    Attributes:
        whole: what one agent must provide; None for a multi-node session.
        parts: the demand of each kernel.
        hardest: the indexes in ``parts``, the largest requests of the scarcest slots first.
        permanent_reason: why it can never run here; None if it can, or while that is not checked.
        alternatives: the same session with each of its device requests, the preferred first; none if it has at most
            one. The other attributes are those of the first.
        blocked: why it cannot start in the rest of this cycle, in which agents only lose free resources.
        group: the sessions that wait for that reason.
    """

    whole: Demand | None
    parts: tuple[Demand, ...]
    hardest: tuple[int, ...]
    alternatives: tuple[EquivalenceClass, ...] = ()
    is_checked: bool = False
    permanent_reason: Verdict | None = None
    blocked: Verdict | None = None
    group: list[SessionId] | None = None

    @property
    def demands(self) -> tuple[Demand, ...]:
        return self.parts if self.whole is None else (self.whole,)

    @property
    def has_amounts(self) -> bool:
        """Returns True if the class's device request states the amounts that its kernels take."""
        request = self.parts[0].device_request
        return request is not None and len(request.amounts) > 0

    @property
    def total(self) -> ResourceSlot:
        """Returns the slots that all kernels of the session take together."""
        return (
            self.parts[0].total
            if len(self.parts) == 1
            else sum((demand.total for demand in self.parts), ResourceSlot())
        )

    @property
    def choices(self) -> tuple[EquivalenceClass, ...]:
        """Returns the classes of the session's alternatives, the preferred one first; without any, this class."""
        return self.alternatives or (self,)


@dataclass(slots=True, eq=False)
class QuotaClass:
    """Groups the sessions of one equivalence class that have the same quotas.

    ``group``: those that wait for these quotas.
    """

    equivalence_class: EquivalenceClass
    quotas: tuple[str, ...]
    group: list[SessionId] | None = None


@dataclass(slots=True, eq=False)
class QueuedSession:
    """Holds a pending session together with its quota class, by which equal sessions share results.

    ``is_gated``: it has a start time, dependencies or a device claim.
    """

    session: PendingSession
    quota_class: QuotaClass
    is_gated: bool


def apply_alternative(session: PendingSession, request: DeviceRequest, amount_slots: frozenset[str]) -> PendingSession:
    """Returns a copy of a session that takes the amounts of one of its alternatives.

    ``amount_slots``: see :func:`slots_with_amounts`.
    """
    kernels = tuple(
        replace(kernel, slots=slots_of_alternative(kernel.slots, request, amount_slots)) for kernel in session.kernels
    )
    return replace(session, kernels=kernels)


@dataclass(slots=True)
class EquivalenceCache:
    """Caches the equivalence and quota classes of one index of agents."""

    index: AgentIndex
    quota_classes: dict[tuple[int, tuple[str, ...]], QuotaClass] = field(default_factory=dict)
    classes: dict[Hashable, EquivalenceClass] = field(default_factory=dict)
    by_request: dict[Hashable, EquivalenceClass] = field(default_factory=dict)
    """The request of a session as it is written -> its equivalence class."""
    _keys: dict[tuple[str, str | None, frozenset[str]], Hashable] = field(default_factory=dict)
    _masks: dict[int, int] = field(default_factory=dict)

    def classify(self, session: PendingSession) -> QueuedSession:
        kernels = session.kernels
        if len(kernels) == 1:
            kernel = kernels[0]
            request_key: Hashable = (
                kernel.slots,
                kernel.requirements,
                self._agents_by_image(kernel),
                session.designated_agents,
                session.device_requests,
            )
        else:
            requests = tuple((kernel.slots, kernel.requirements, self._agents_by_image(kernel)) for kernel in kernels)
            request_key = requests, session.cluster_mode, session.designated_agents, session.device_requests
        equivalence_class = self.by_request.get(request_key)
        if equivalence_class is None:
            equivalence_class = self.by_request[request_key] = self._class_of(session)
        quota_class = self.quota_classes.get((id(equivalence_class), session.quotas))
        if quota_class is None:
            quota_class = self.quota_classes[id(equivalence_class), session.quotas] = QuotaClass(
                equivalence_class, session.quotas
            )
        is_gated = session.starts_at is not None or bool(session.dependencies) or session.claim is not None
        return QueuedSession(session, quota_class, is_gated)

    def trim(self, queued_sessions: Collection[QueuedSession]) -> None:
        """Drops unused quota classes and cached requests once they far outnumber all queued sessions."""
        max_entries = MAX_CLASSES + 2 * len(queued_sessions)
        if len(self.quota_classes) > max_entries:
            self.quota_classes = {
                (
                    id(queued_session.quota_class.equivalence_class),
                    queued_session.quota_class.quotas,
                ): queued_session.quota_class
                for queued_session in queued_sessions
            }
        if len(self.by_request) > max_entries:
            self.by_request.clear()

    def _agents_by_image(self, kernel: PendingKernel) -> Hashable:
        """Returns a key for the set of agents that can start a kernel. Kernels with the same agents share the key.

        If no agent can start the kernel, the key is that of its image, architecture and needs.
        """
        image_key = kernel.image, kernel.architecture, kernel.needs
        agents_key = self._keys.get(image_key)
        if agents_key is None:
            mask = self.index.matching_mask(kernel)
            agents_key = self._keys[image_key] = self._masks.setdefault(mask, len(self._masks)) if mask else image_key
        return agents_key

    def _compile(self, text: str) -> DeviceRequest:
        return self.index.request_compiler.compile(text)

    def _class_of(self, session: PendingSession) -> EquivalenceClass:
        requests = [self._compile(request_text) for request_text in dict.fromkeys(session.device_requests)]
        if not requests:
            return self._equivalence_class(session)
        amount_slots = slots_with_amounts(requests)
        alternatives = tuple(
            self._equivalence_class(
                apply_alternative(session, request, amount_slots) if amount_slots else session, request
            )
            for request in requests
        )
        if len(alternatives) == 1:
            return alternatives[0]
        class_key = tuple(map(id, alternatives))
        equivalence_class = self.classes.get(class_key)
        if equivalence_class is None:
            first_class = alternatives[0]
            equivalence_class = self.classes[class_key] = EquivalenceClass(
                first_class.whole, first_class.parts, first_class.hardest, alternatives
            )
        return equivalence_class

    def _equivalence_class(
        self, session: PendingSession, device_request: DeviceRequest | None = None
    ) -> EquivalenceClass:
        index, kernels = self.index, session.kernels
        agent_mask = index.designated_mask(session.designated_agents) if session.designated_agents else index.all_agents
        kernels_together = session.cluster_mode is ClusterMode.SINGLE_NODE or len(kernels) == 1
        demands = tuple(
            index.demand_of([kernel], agent_mask, device_request, near_network=not kernels_together)
            for kernel in kernels
        )
        whole_demand = None
        if kernels_together:
            whole_demand = demands[0] if len(demands) == 1 else index.demand_of(kernels, agent_mask, device_request)
        # Equal demands are one object, but demands that no agent matches are distinguished by their images.
        image_key = (
            session.designated_agents,
            *(kernel.image for kernel in kernels),
            *(kernel.architecture for kernel in kernels),
            *(kernel.needs for kernel in kernels),
        )
        class_key = (whole_demand, demands, None if all(demand.matching_mask for demand in demands) else image_key)
        equivalence_class = self.classes.get(class_key)
        if equivalence_class is None:
            slots = sorted({slot for kernel_demand in demands for slot in kernel_demand.total}, key=scarcity)
            hardest_indexes = sorted(
                range(len(demands)), key=lambda place: [-demands[place].total[slot] for slot in slots]
            )
            equivalence_class = self.classes[class_key] = EquivalenceClass(
                whole_demand, demands, tuple(hardest_indexes)
            )
        return equivalence_class
