"""Predicts how the scheduler would treat a request, and explains why sessions wait."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict
from uuid import uuid4

import msgspec

from ai.backend.common.errors import BackendError, ImageNotFound, LimitExceeded, ResourceError
from ai.backend.common.ids import AgentId, KernelId, SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import LIVE_SESSION_STATUSES, SessionStatus
from ai.backend.common.structs import replace
from ai.backend.core.scheduling.plan import SkipReason
from ai.backend.core.scheduling.snapshot import PendingSession, Quota
from ai.backend.core.scheduling.trial import Exclusion, Outcome, Proposal, Trial
from ai.backend.infra.clock import Clock
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.scheduling.model import (
    AgentsVerdict,
    ExcludedAgents,
    Explanation,
    Limit,
    NearestRequest,
    Remedy,
    SessionCount,
    SessionRef,
    WithheldDevice,
)
from ai.backend.manager.scheduling.queues import QueueReader, QueueState, is_delayed
from ai.backend.manager.sessions.creation.factory import SessionFactory
from ai.backend.manager.sessions.lookup import SessionFinder, sees
from ai.backend.manager.sessions.model import CreateSession, OwnerLimits, Session, SessionQuery, too_many_sessions

_MAX_LISTED_SESSIONS, _MAX_NEAREST_REQUESTS = 20, 3
_MAX_HOLDING_AGENTS, _MAX_HOLDERS = 32, 200
_MAX_QUEUE_FOR_NEAREST = 2_000
"""The number of waiting sessions from which smaller requests are not tried, as each costs a pass over the queue."""
_MAX_CACHED_ANSWERS = 512
_REFUSAL_ERRORS = (ResourceError, LimitExceeded, ImageNotFound)
"""Errors of a creation that mean a lack of resources; other errors mean a fault of the request."""
_REASONS_OF_TIME = frozenset({SkipReason.NOT_YET, SkipReason.DEPENDENCY_UNFINISHED, SkipReason.BEHIND_ANOTHER})
_REASONS_OF_OTHERS = frozenset({SkipReason.QUOTA_EXCEEDED, SkipReason.INSUFFICIENT_RESOURCE, SkipReason.CLAIM_IN_USE})


def remedy_of(reason: SkipReason) -> Remedy:
    """Returns the remedy for a reason to wait: what could end the wait."""
    if reason in _REASONS_OF_TIME or reason is SkipReason.PREEMPTING:
        return "time"
    return "others" if reason in _REASONS_OF_OTHERS else "change"


def message_of(reason: SkipReason, message: str, *, holder: Session | None) -> str:
    """Returns the text of a reason, which names another session only if the caller may see ``holder``."""
    if reason is SkipReason.BEHIND_ANOTHER and holder is None:
        return "waits behind another session, which came first"
    return message


@dataclass(eq=False, repr=False, kw_only=True)
class ExplanationService:
    """Explains if a requested session would start, and why sessions wait.

    Answers are at most a second old, and equal questions share one.
    """

    queues: QueueReader
    factory: SessionFactory
    finder: SessionFinder
    identity: IdentityService
    clock: Clock
    _kept: OrderedDict[bytes, tuple[float, Explanation]] = field(default_factory=OrderedDict, init=False)

    async def explain_request(self, caller: Caller, request: CreateSession, *, count: int = 1) -> Explanation:
        """Predicts the scheduling of ``count`` equal new sessions. Nothing is created, and hooks are not asked.

        Raises what :meth:`SessionService.create` raises for a request that is wrong in itself; that resources or limits
        do not allow it is an explanation.
        """
        key = msgspec.json.encode([caller.access_key, count, request])
        cached_at_s, cached_explanation = self._kept.get(key, (0.0, None))
        if cached_explanation is not None and self.clock.monotonic() - cached_at_s < self.queues.keep_s:
            return cached_explanation
        explanation = await self._explain_request(caller, request, count)
        self._kept[key] = self.clock.monotonic(), explanation
        if len(self._kept) > _MAX_CACHED_ANSWERS:
            self._kept.popitem(last=False)
        return explanation

    async def _explain_request(self, caller: Caller, request: CreateSession, count: int) -> Explanation:
        owner = await self.identity.resolve_owner(caller, request.owner_access_key)
        try:
            session, owner_limits = await self.factory.build(caller, owner, request)
            await self._check_owner_limits(session, owner_limits, count)
        except _REFUSAL_ERRORS as e:
            return self._refused_explanation(request, count, e)
        images = frozenset(kernel.image for kernel in session.kernels)
        state = await self.queues.state(session.scaling_group, images=images)
        quotas = await self.queues.quotas_of(session)
        candidate = await self.queues.to_pending_session(session, quotas)
        trial = state.run(_copy_candidate(candidate, count), quotas)
        nearest_requests: list[NearestRequest] = []
        if trial.outcome is not Outcome.NOW and not request.roles and len(state.sessions) < _MAX_QUEUE_FOR_NEAREST:
            nearest_requests = await self._nearest_requests(caller, owner, request, trial.proposals, state, count)
        explanation = await self._describe(caller, session, trial, state, quotas)
        return replace(
            explanation,
            count=count,
            placed=trial.placed,
            nearest=nearest_requests,
            message=_now_message(trial, count) if trial.outcome is Outcome.NOW else explanation.message,
        )

    async def _check_owner_limits(self, session: Session, limits: OwnerLimits, count: int) -> None:
        """Raises LimitExceeded if the insertion of the last of ``count`` sessions would exceed a limit of the owner."""
        sessions = self.queues.reader.sessions
        if limits.max_live is not None:
            live_count = (await sessions.count_live([session.access_key])).get(session.access_key, 0)
            if live_count + count > limits.max_live:
                raise too_many_sessions(limits.max_live)
        if limits.counts_pending:
            pending_sessions = await sessions.by_status([SessionStatus.PENDING])
            owned_sessions = [
                pending_session
                for pending_session in pending_sessions
                if pending_session.access_key == session.access_key
            ]
            slots = sum(
                (_total_slots(pending_session) for pending_session in (*owned_sessions, *[session] * count)),
                ResourceSlot(),
            )
            limits.check_pending(len(owned_sessions) + count, slots)

    def _refused_explanation(self, request: CreateSession, count: int, error: BackendError) -> Explanation:
        is_limit = isinstance(error, LimitExceeded)
        return Explanation(
            verdict="never",
            reason=error.code,
            remedy="others" if is_limit and {"concurrency", "pending"} & set(error.data) else "change",
            message=error.message,
            is_refused=True,
            resource_group=request.scaling_group or "",
            count=count,
            cluster_size=request.cluster_size,
            at=self.clock.now().isoformat(),
        )

    async def _nearest_requests(
        self,
        caller: Caller,
        owner: Caller,
        request: CreateSession,
        proposals: Sequence[Proposal],
        state: QueueState,
        count: int,
    ) -> list[NearestRequest]:
        """Returns those of the proposed smaller requests that are valid and that the scheduler would start at once."""
        nearest_requests: list[NearestRequest] = []
        for proposal in proposals:
            resources = proposal.slots.to_json()
            smaller_request = replace(request, resources=resources, cluster_size=proposal.kernels)
            device_requests = [proposal.device_request] if proposal.device_request else []
            if device_requests:
                smaller_request = replace(smaller_request, device_requests=tuple(device_requests))
            try:
                session, _ = await self.factory.build(caller, owner, smaller_request)
            except BackendError:
                continue
            quotas = await self.queues.quotas_of(session)
            candidate = await self.queues.to_pending_session(session, quotas)
            if state.run(_copy_candidate(candidate, count), quotas).outcome is Outcome.NOW:
                nearest_requests.append(
                    NearestRequest(resources=resources, cluster_size=proposal.kernels, device_requests=device_requests)
                )
            if len(nearest_requests) == _MAX_NEAREST_REQUESTS:
                break
        return nearest_requests

    # ---- sessions

    async def explain_session(self, caller: Caller, ref: str, *, owner_access_key: str | None = None) -> Explanation:
        """Returns why a session waits, as of now. Raises SessionNotFound and TooManySessionsMatched."""
        session = await self.finder.one(caller, ref, owner_access_key=owner_access_key)
        state = await self.queues.state(session.scaling_group)
        if session.status is SessionStatus.PENDING and session.id not in state.sessions:
            state = await self.queues.state(session.scaling_group, force_read=True)  # it was created since
            if session.id not in state.sessions:  # or it has been scheduled since
                session = await self.finder.one(caller, str(session.id))
        if session.status is not SessionStatus.PENDING:
            return Explanation(
                verdict="ended" if session.status.is_final else "started",
                message=f"The session is {session.status.value}.",
                **_request_of(session),
                at=state.at.isoformat(),
            )
        waiting_count = len(state.sessions)
        if session.id not in state.sessions or is_delayed(session, state.at):
            retry_at = session.not_before.isoformat(timespec="seconds") if session.not_before is not None else "once"
            return Explanation(
                verdict="waits",
                reason=SkipReason.NOT_YET.value,
                remedy="time",
                message=f"its start failed and is tried again at {retry_at}",
                waiting=waiting_count,
                **_request_of(session),
                at=state.at.isoformat(),
            )
        trial = state.watch(session.id)
        quotas = await self.queues.quotas_of(session)
        explanation = await self._describe(caller, session, trial, state, quotas)
        queue_index = trial.order.index(session.id)
        reserved_agents = trial.reserved_for(session.id)
        return replace(
            explanation,
            placed=trial.placed,
            position=queue_index + 1,
            ahead=_session_count(caller, [state.sessions[ahead_id] for ahead_id in trial.order[:queue_index]]),
            reserved=_excluded_agents(caller, "reserved", reserved_agents) if reserved_agents else None,
            evictions=sum(eviction.in_favour_of == session.id for eviction in trial.plan.evictions),
            message=_now_message(trial, 1) if trial.outcome is Outcome.NOW else explanation.message,
        )

    # ---- the parts of an explanation

    async def _describe(
        self, caller: Caller, session: Session, trial: Trial, state: QueueState, quotas: Mapping[str, Quota]
    ) -> Explanation:
        assert state.snapshot is not None
        skip = trial.skip
        session_in_front = self._session_in_front(caller, trial, state) if skip is not None else None
        holders = SessionCount()
        if skip is not None and skip.reason is SkipReason.INSUFFICIENT_RESOURCE:
            busy_agents = [*trial.exclusions.get(Exclusion.BUSY, ()), *trial.exclusions.get(Exclusion.SCATTERED, ())]
            holders = await self._holders_on(caller, busy_agents, session.requested_slots)
        elif skip is not None and skip.reason is SkipReason.QUOTA_EXCEEDED:
            holders = await self._holders_of_key(caller, session)
        excluded_agents = [
            _excluded_agents(caller, exclusion.value, trial.exclusions[exclusion])
            for exclusion in Exclusion
            if exclusion in trial.exclusions
        ]
        sees_agents = is_permitted(caller, Operation.SEE_AGENTS)
        return Explanation(
            verdict=trial.outcome.value,
            reason=skip.reason.value if skip is not None else None,
            remedy=remedy_of(skip.reason) if skip is not None else None,
            message=message_of(skip.reason, skip.message, holder=session_in_front) if skip is not None else "",
            **_request_of(session),
            agents=AgentsVerdict(
                total=len(state.snapshot.agents),
                startable=len(trial.startable),
                names=[str(agent_id) for agent_id in trial.startable] if sees_agents else [],
                excluded=excluded_agents,
                largest_free=trial.largest_free.to_json(),
            ),
            limits=_limit_views(quotas, _total_slots(session)),
            withheld=_withheld_devices(caller, trial) if skip is not None else [],
            waiting=len(state.sessions),
            behind=_session_ref(session_in_front) if session_in_front is not None else None,
            holders=holders,
            at=state.at.isoformat(),
        )

    @staticmethod
    def _session_in_front(caller: Caller, trial: Trial, state: QueueState) -> Session | None:
        """Returns the first session that blocks the explained session, since an agent is kept free for it.

        Returns None if there is no such session, or if the caller may not see it.
        """
        reserved_agents = set(trial.exclusions.get(Exclusion.RESERVED, ()))
        for agent_id, session_id in trial.plan.reserved:
            holder = state.sessions.get(session_id)
            if agent_id in reserved_agents and holder is not None:
                return holder if sees(caller, holder) else None
        return None

    async def _holders_on(self, caller: Caller, agents: Sequence[AgentId], requested: ResourceSlot) -> SessionCount:
        """Returns the number of sessions that occupy the requested slots on the first agents of a list.

        Names those of the sessions that the caller may see. Slots other than ``cpu`` and ``mem`` count, if any are
        requested.
        """
        sessions = self.queues.reader.sessions
        scarce_slots = [name for name in requested.nonzero() if name not in ("cpu", "mem")] or list(requested.nonzero())
        holdings = await sessions.held(list(agents[:_MAX_HOLDING_AGENTS]))
        session_ids = {
            holding.session_id: None for holding in holdings if any(holding.slots[name] for name in scarce_slots)
        }
        return _session_count(
            caller, await sessions.get_many(list(session_ids)[:_MAX_HOLDERS]), total_count=len(session_ids)
        )

    async def _holders_of_key(self, caller: Caller, session: Session) -> SessionCount:
        """Returns the number of other live sessions of the same keypair that hold slots, and names some of them.

        Only a first page of the keypair's live sessions is read and counted.
        """
        query = SessionQuery(limit=_MAX_LISTED_SESSIONS, access_key=session.access_key, statuses=LIVE_SESSION_STATUSES)
        page = await self.queues.reader.sessions.search(query)
        holding_sessions = [
            live_session
            for live_session in page.items
            if live_session.id != session.id and len(live_session.occupying_slots.nonzero())
        ]
        return _session_count(caller, holding_sessions)


def _copy_candidate(candidate: PendingSession, count: int) -> list[PendingSession]:
    """Returns a list of ``count`` equal pending sessions: the candidate, and copies of it with new ids."""
    copied_sessions = [candidate]
    for _ in range(count - 1):
        kernels = tuple(replace(kernel, kernel_id=KernelId(uuid4())) for kernel in candidate.kernels)
        copied_sessions.append(replace(candidate, session_id=SessionId(uuid4()), kernels=kernels))
    return copied_sessions


def _total_slots(session: Session) -> ResourceSlot:
    return sum((kernel.requested_slots for kernel in session.kernels), ResourceSlot())


class _Request(TypedDict):
    """Holds the resource group, the slots and the cluster size of the request or session that is explained."""

    resource_group: str
    requested: dict[str, str]
    cluster_size: int


def _request_of(session: Session) -> _Request:
    return {
        "resource_group": session.scaling_group,
        "requested": _total_slots(session).to_json(),
        "cluster_size": session.cluster_size,
    }


def _now_message(trial: Trial, count: int) -> str:
    excluded_count = sum(map(len, trial.exclusions.values()))
    startable_count = len(trial.startable)
    start_text = "starts now" if count == 1 else f"all {count} start now"
    return f"{start_text}; {startable_count} of {startable_count + excluded_count} agents could take it"


def _limit_views(quotas: Mapping[str, Quota], requested: ResourceSlot) -> list[Limit]:
    limits = []
    for name, quota in quotas.items():
        for slot, limit in quota.limit.items():
            if not requested[slot]:
                continue
            values = {"limit": limit, "used": quota.used[slot], "requested": requested[slot]}
            limits.append(
                Limit(
                    scope=name.partition(":")[0],
                    slot=slot,
                    **{key: ResourceSlot({slot: value}).to_json()[slot] for key, value in values.items()},
                    is_exceeded=quota.used[slot] + requested[slot] > limit,
                )
            )
    return limits


def _excluded_agents(caller: Caller, reason: str, agents: Collection[AgentId]) -> ExcludedAgents:
    sees_agents = is_permitted(caller, Operation.SEE_AGENTS)
    return ExcludedAgents(
        reason=reason, count=len(agents), agents=[str(agent_id) for agent_id in agents] if sees_agents else []
    )


def _withheld_devices(caller: Caller, trial: Trial) -> list[WithheldDevice]:
    sees_agents = is_permitted(caller, Operation.SEE_AGENTS)
    return [
        WithheldDevice(
            agent=withheld_device.agent_id if sees_agents else "",
            device_name=withheld_device.device_name,
            device_id=withheld_device.device_id,
            reason=f"tainted {withheld_device.reason}"
            if withheld_device.is_tainted
            else withheld_device.reason or "unhealthy",
        )
        for withheld_device in trial.withheld
    ]


def _session_ref(session: Session) -> SessionRef:
    slots = session.occupying_slots if len(session.occupying_slots.nonzero()) else _total_slots(session)
    return SessionRef(id=str(session.id), name=session.name, status=session.status.value, slots=slots.to_json())


def _session_count(caller: Caller, sessions: Sequence[Session], *, total_count: int | None = None) -> SessionCount:
    """Returns the number of the sessions, with references to the first sessions that the caller may see."""
    visible_sessions = [_session_ref(session) for session in sessions if sees(caller, session)][:_MAX_LISTED_SESSIONS]
    return SessionCount(count=len(sessions) if total_count is None else total_count, visible=visible_sessions)
