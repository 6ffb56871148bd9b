"""Dumps the scheduler's state of a resource group, and repeats its decisions with another policy."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass

from ai.backend.common.errors import InvalidInput, NotFound
from ai.backend.common.structs import replace
from ai.backend.core.scheduling.decide import decide
from ai.backend.core.scheduling.plan import Plan
from ai.backend.core.scheduling.policy import ORDERS, PLACEMENTS, SHARED_ORDERS, Policy
from ai.backend.core.scheduling.snapshot import Snapshot, dump_json
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.resource_groups.service import ResourceGroupService
from ai.backend.manager.scheduling.model import ReplayedPass, ReplayedSession, ReplayView
from ai.backend.manager.scheduling.queues import QueueReader, QueueState

MAX_SESSIONS = 200
"""The maximum number of sessions that a reply names; all sessions are counted."""


@dataclass(eq=False, repr=False)
class Replays:
    """Dumps the scheduler's input and replays passes, for callers who may change resource groups. Other callers may
    not, as a dump has the sessions of everybody.
    """

    _queues: QueueReader
    _resource_groups: ResourceGroupService

    async def dump(self, caller: Caller, group: str) -> bytes:
        """Returns the input of the next pass as JSON, for ``backend.ai mgr scheduler replay``. Raises Forbidden,
        NotFound."""
        snapshot, state = await self._snapshot(caller, group)
        return await asyncio.to_thread(dump_json, replace(snapshot, policy=state.policy.dump()))

    async def replay(self, caller: Caller, group: str, *, order: str | None, placement: str | None) -> ReplayView:
        """Returns the results of the next pass by the group's policy and by another policy. Nothing is started.

        Orders by use can be chosen only where the group has one, since the snapshot has no use otherwise.

        Raises:
            Forbidden, NotFound. InvalidInput: there is no such order or placement.
        """
        snapshot, state = await self._snapshot(caller, group)
        present_policy = other_policy = state.policy
        order_names = sorted(ORDERS if present_policy.needs_usage else ORDERS.keys() - SHARED_ORDERS)
        for name, chosen_name, allowed_names in (
            ("order", order, order_names),
            ("placement", placement, sorted(PLACEMENTS)),
        ):
            if chosen_name is not None and chosen_name not in allowed_names:
                message = (
                    f"There is no {name} {chosen_name[:64]!r} to replay by; choose one of {', '.join(allowed_names)}."
                )
                raise InvalidInput(message, data={name: "unknown"})
        if order is not None:
            other_policy = replace(other_policy, order=order, plugged_order=None)
        if placement is not None:
            other_policy = replace(other_policy, placement=placement, plugged=None)

        def run_passes() -> tuple[Plan, Plan]:
            plans = [
                decide(snapshot, replayed_policy, now=state.at, rng=random.Random(0))
                for replayed_policy in (present_policy, other_policy)
            ]
            return plans[0], plans[1]

        present_plan, other_plan = await asyncio.to_thread(run_passes)
        names = {session.session_id: session.name for session in snapshot.pending}
        reasons = [{skip.session_id: skip.reason.value for skip in plan.skips} for plan in (present_plan, other_plan)]
        items = [
            ReplayedSession(
                id=str(session_id),
                name=names[session_id],
                present=reasons[0].get(session_id, "placed"),
                other=reasons[1].get(session_id, "placed"),
            )
            for session_id in names
        ]
        items.sort(key=lambda item: item.present == item.other)
        return ReplayView(
            resource_group=group,
            at=state.at.isoformat(),
            waiting=len(names),
            agents=len(snapshot.agents),
            orders=order_names,
            placements=sorted(PLACEMENTS),
            present=_summarize_pass(present_policy, present_plan),
            other=_summarize_pass(other_policy, other_plan),
            items=items[:MAX_SESSIONS],
        )

    async def _snapshot(self, caller: Caller, group: str) -> tuple[Snapshot, QueueState]:
        require(caller, Operation.CHANGE_RESOURCE_GROUPS)
        if group not in {
            available_group.name for available_group in await self._resource_groups.available_groups(caller)
        }:
            raise NotFound(f"There is no resource group {group[:64]!r}.", data={"scaling_group": "unknown"})
        state = await self._queues.state(group)
        assert state.snapshot is not None
        return state.snapshot, state


def _summarize_pass(policy: Policy, plan: Plan) -> ReplayedPass:
    return ReplayedPass(
        order=policy.order,
        placement=policy.placement,
        placed=len(plan.placements),
        reserved=len(plan.reserved),
        evictions=len(plan.evictions),
        reasons=dict(Counter(skip.reason.value for skip in plan.skips)),
    )
