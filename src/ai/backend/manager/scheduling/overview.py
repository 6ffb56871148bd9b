"""Lists the queues and the fair shares of resource groups, restricted to what the caller may see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from ai.backend.common.errors import NotFound
from ai.backend.common.ids import SessionId, UserId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.structs import replace
from ai.backend.core.scheduling.options import read
from ai.backend.core.scheduling.ordering.fair_share import occupied_by_scope
from ai.backend.core.scheduling.plan import Skip
from ai.backend.infra.clock import Clock
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.resource_groups.model import ResourceGroup
from ai.backend.manager.resource_groups.service import ResourceGroupService
from ai.backend.manager.scheduling.explanations import message_of, remedy_of
from ai.backend.manager.scheduling.model import QueueEntry, QueueView, ShareItem, SharesView
from ai.backend.manager.scheduling.queues import QueueReader
from ai.backend.manager.scheduling.reading import group_policy
from ai.backend.manager.scheduling.snapshot import scopes_and_slots
from ai.backend.manager.sessions.lookup import sees
from ai.backend.manager.sessions.model import Session

MAX_PAGE = 100
_USAGE_CACHE_S = 10.0
_MAX_NAMED_USERS = 200
_SCOPE_LEVELS = ("domain", "project", "user")
_Usage = tuple[Mapping[str, ResourceSlot], Mapping[str, ResourceSlot], ResourceSlot, Mapping[str, str]]


@dataclass(eq=False, repr=False, kw_only=True)
class SchedulingOverview:
    """Shows queues and shares of the resource groups that are open to the caller."""

    queues: QueueReader
    resource_groups: ResourceGroupService
    identities: IdentityStore
    clock: Clock
    _usage: dict[str, tuple[float, _Usage]] = field(default_factory=dict, init=False)

    async def queue(self, caller: Caller, group: str, *, limit: int, offset: int) -> QueueView:
        """Returns a page of the waiting sessions that the caller may see, in the order in which they are tried.
        Raises NotFound: the resource group is not open to the caller."""
        await self._open_group(caller, group)
        state = await self.queues.state(group)
        trial = state.run_unchanged()
        skips = {
            session_id: Skip(session_id=session_id, reason=waiting_group.reason, message=waiting_group.message)
            for waiting_group in trial.plan.waits
            for session_id in waiting_group.session_ids
        }
        order = [*trial.order, *(state.sessions.keys() - set(trial.order))]
        visible_sessions = [
            (position, session)
            for position, session_id in enumerate(order, 1)
            if (session := state.sessions.get(session_id)) is not None and sees(caller, session)
        ]
        reserved_counts = Counter(session_id for _, session_id in trial.plan.reserved)
        holders = [state.sessions[holder_id] for holder_id in reserved_counts if holder_id in state.sessions]
        may_name_holders = all(sees(caller, holder) for holder in holders)
        items = [
            _queue_entry(position, session, skips.get(session.id), reserved_counts, may_name_holders=may_name_holders)
            for position, session in visible_sessions[offset : offset + limit]
        ]
        return QueueView(
            resource_group=group,
            order=state.policy.order,
            waiting=len(state.sessions),
            total_count=len(visible_sessions),
            reserved_agents=len(trial.plan.reserved),
            reasons=dict(Counter(skip.reason.value for skip in skips.values())),
            items=items,
            at=state.at.isoformat(),
        )

    async def shares(self, caller: Caller, group_name: str) -> SharesView:
        """Returns the fair shares in a resource group of the domains, projects and users that the caller may see.

        These are the caller's domain, projects and user, or all scopes that the caller's role may see. Raises
        NotFound: the resource group is not open to the caller.
        """
        group = await self._open_group(caller, group_name)
        used_lately, now_occupied, capacity, names = await self._usage_of(group)
        weights, own_groups = (
            read(group.scheduler_opts).weights,
            await self.identities.groups(user_id=caller.user_id),
        )
        own_projects = {str(group_of_caller.id) for group_of_caller in own_groups}
        scopes = sorted({*used_lately, *now_occupied, *_own_scopes(caller, own_projects)})
        items = [
            self._share(
                scope,
                caller,
                used_lately.get(scope, ResourceSlot()),
                now_occupied.get(scope, ResourceSlot()),
                capacity,
                weights.get(scope, 1.0),
                names,
            )
            for scope in scopes
            if _sees_scope(caller, scope, own_projects)
        ]
        names_of_users = await self._names_of_users(items)
        return SharesView(
            resource_group=group.name,
            order=group_policy(group).order,
            half_life_s=read(group.scheduler_opts).half_life_s,
            capacity=capacity.to_json(),
            items=[item if item.name else _with_user_name(item, names_of_users) for item in items],
            at=self.clock.now().isoformat(),
        )

    async def _open_group(self, caller: Caller, name: str) -> ResourceGroup:
        group = next(
            (
                available_group
                for available_group in await self.resource_groups.available_groups(caller)
                if available_group.name == name
            ),
            None,
        )
        if group is None:
            raise NotFound(f"There is no resource group {name[:64]!r} for you.", data={"scaling_group": "unknown"})
        return group

    async def _usage_of(self, group: ResourceGroup) -> _Usage:
        """Returns the recent and the present use of slots by each scope of a resource group, with its capacity.

        The recent use is decayed. The names of the scopes are returned as well.
        """
        read_at, usage = self._usage.get(group.name, (float("-inf"), None))
        if usage is not None and self.clock.monotonic() - read_at < _USAGE_CACHE_S:
            return usage
        reader = self.queues.reader
        agents = [agent for agent in await reader.agents.agents(scaling_group=group.name) if agent.schedulable]
        holdings = await reader.sessions.held([agent.id for agent in agents])
        owners = {
            session.id: session
            for session in await reader.sessions.get_many({holding.session_id for holding in holdings})
        }
        now_occupied = occupied_by_scope(scopes_and_slots(holdings, owners))
        used_lately = await reader.shares.decayed_usage(group, now_occupied, self.clock.now())
        capacity = sum((agent.available_slots for agent in agents), ResourceSlot())
        names = {str(project.id): project.name for project in await self.identities.groups()}
        names |= {str(owner.user_id): owner.user_email for owner in owners.values()}
        usage = used_lately, now_occupied, capacity, names
        self._usage[group.name] = self.clock.monotonic(), usage
        return usage

    @staticmethod
    def _share(
        scope: str,
        caller: Caller,
        used_lately: ResourceSlot,
        now_occupied: ResourceSlot,
        capacity: ResourceSlot,
        weight: float,
        names: Mapping[str, str],
    ) -> ShareItem:
        scope_parts = scope.split("/")
        measured_slots = used_lately if len(used_lately.nonzero()) else now_occupied
        share = max(
            (float(measured_slots[slot] / capacity[slot]) for slot in measured_slots if capacity[slot]), default=0.0
        )
        last_part = scope_parts[-1]
        return ShareItem(
            scope=scope,
            level=_SCOPE_LEVELS[len(scope_parts) - 1],  # type: ignore[arg-type]  # a scope has one to three parts
            name=last_part if len(scope_parts) == 1 else names.get(last_part, ""),
            weight=weight,
            used=used_lately.to_json(),
            occupied=now_occupied.to_json(),
            share=round(share, 6),
            weighted_share=round(share / max(weight, 1e-9), 6),
            is_own=len(scope_parts) == 3 and last_part == str(caller.user_id),
        )

    async def _names_of_users(self, items: Iterable[ShareItem]) -> Mapping[str, str]:
        """Returns the e-mail addresses of users who occupy no slots now."""
        names: dict[str, str] = {}
        nameless_user_ids = {item.scope.rpartition("/")[2] for item in items if not item.name and item.level == "user"}
        for user_id in sorted(nameless_user_ids)[:_MAX_NAMED_USERS]:
            user = await self.identities.user(uuid=UserId(UUID(user_id)))
            if user is not None:
                names[user_id] = user.email
        return names


def _own_scopes(caller: Caller, projects: Iterable[str]) -> list[str]:
    domain = caller.domain_name
    paths = [(domain, project, str(caller.user_id)) for project in projects]
    return [domain, *(f"{domain}/{project}" for _, project, _ in paths), *("/".join(path) for path in paths)]


def _sees_scope(caller: Caller, scope: str, own_projects: set[str]) -> bool:
    """Returns True if the caller may see the fair share of a scope (a domain, project or user).

    Callers see their own scopes, and scopes whose usage reports they may see.
    """
    domain, _, project_and_user = scope.partition("/")
    project, _, user = project_and_user.partition("/")
    if is_permitted(caller, Operation.SEE_USAGE, domain_name=domain):
        return True
    if domain != caller.domain_name:
        return False
    return not project_and_user or (project in own_projects and user in ("", str(caller.user_id)))


def _with_user_name(item: ShareItem, names: Mapping[str, str]) -> ShareItem:

    last_part = item.scope.rpartition("/")[2]
    return replace(item, name=names.get(last_part, last_part))


def _queue_entry(
    position: int,
    session: Session,
    skip: Skip | None,
    reserved_counts: Mapping[SessionId, int],
    *,
    may_name_holders: bool,
) -> QueueEntry:
    total_slots = sum((kernel.requested_slots for kernel in session.kernels), ResourceSlot())
    visible_holder = session if may_name_holders else None
    return QueueEntry(
        position=position,
        id=str(session.id),
        name=session.name,
        user_email=session.user_email,
        group_name=session.group_name,
        type=session.type.value,
        priority=session.priority,
        cluster_size=session.cluster_size,
        requested_slots=total_slots.to_json(),
        enqueued_at=session.created_at.isoformat(),
        reason=skip.reason.value if skip is not None else None,
        remedy=remedy_of(skip.reason) if skip is not None else None,
        message=message_of(skip.reason, skip.message, holder=visible_holder)
        if skip is not None
        else "starts in the next pass",
        reserved_agents=reserved_counts.get(session.id, 0),
    )
