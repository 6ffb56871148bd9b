"""Simulates a control plane: managers on one database, agents on their nodes, and users."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import msgspec

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.common.errors import BackendError
from ai.backend.common.ids import SessionId
from ai.backend.common.states import ClaimStatus, ClusterMode, SessionStatus, SessionType
from ai.backend.common.structs import replace
from ai.backend.core.scheduling.decide import decide
from ai.backend.core.scheduling.policy import Policy
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.composition.bootstrap import Bootstrap
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.sessions.claims.creation import CreateClaim
from ai.backend.manager.sessions.claims.service import ClaimService
from ai.backend.manager.sessions.memory import Memory
from ai.backend.manager.sessions.model import CreateSession, Session
from ai.backend.simulator import gpus
from ai.backend.simulator.daemons import AgentDaemon, Inbox, ManagerDaemon
from ai.backend.simulator.invariants import Invariants, first_leftover, is_unexplained
from ai.backend.simulator.node import Node
from ai.backend.simulator.stores import make_stores, with_faults
from ai.backend.simulator.virtual_time import ProcessDied
from ai.backend.simulator.world import EPOCH, NO_FAULTS, Faults, SeededIds, SkewedClock, World

MANAGER_SETTINGS: dict[str, Any] = {
    "manager": {"lease_s": 6.0},
    "agents": {"abandon_s": 40.0, "abandon_terminating_s": 20.0, "presence_grace_s": 10.0},
    "sessions": {
        "start_timeout_s": 300.0,
        "restart_timeout_s": 300.0,
        "terminate_timeout_s": 60.0,
        "destroy_wait_s": 5.0,
    },
    "callbacks": {"attempts": 16},
}
AGENT_SETTINGS: dict[str, Any] = {
    "kernel-lifecycles": {
        "create-timeout": 20.0,
        "ready-timeout": 10.0,
        "plugin-timeout": 6.0,
        "stop-grace": 2.0,
        "termination-deferral": 8.0,
    },
    "intervals": {"heartbeat": 3.0, "statistics": 30.0, "inventory": 15.0, "images": 60.0, "sync": 7.0},
}
RESTING_STATUSES = frozenset(s for s in SessionStatus if s.is_final) | {SessionStatus.RUNNING, SessionStatus.PENDING}
_MAX_SETTLING_S = 900.0
_CHECK_INTERVAL_S = 2.5
_EXPLANATION_S = 20.0
"""The seconds after which each session that waits has a reason: of two passes of the scheduler the first may have met
the last faults of the database, which make it slow and then lose its answer."""
_HEALTH_RECOVERY_S = 120.0
"""The seconds after which every device counts as healthy again."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Describes how large a simulated cluster is and what happens in it.

    ``busy_s``: how long users act and faults happen; ``mean_..._steps``: the mean life of daemons; None: for ever.
    """

    managers: int = 2
    agents: int = 3
    busy_s: float = 60.0
    requests: int = 12
    mean_manager_steps: float | None = 6_000.0
    mean_agent_steps: float | None = 3_000.0
    policy: Policy = msgspec.field(default_factory=Policy)
    claims: int = 0
    """Device claims that some of the sessions name."""
    has_gpus: bool = False
    """True if nodes have devices that are cut on demand, and sessions ask for them."""


_DEFAULT_PLAN = Plan()


def _agent_settings(number: int, *, has_gpus: bool) -> AgentSettings:
    node_settings: dict[str, Any] = {"id": f"i-{number}", "location": ["zone", f"rack-{number % 2}"]}
    if has_gpus:
        node_settings |= {"partition-on-demand": [gpus.PLUGIN_KEY], "partition-idle": 40.0}
    return AgentSettings.model_validate({"agent": node_settings, **AGENT_SETTINGS})


class Cluster:
    """Runs the managers, agents and users of one seed. :meth:`begin` starts the simulation."""

    def __init__(self, seed: int, faults: Faults, plan: Plan = _DEFAULT_PLAN) -> None:
        self.seed = seed
        self.plan = plan
        self.world = world = World(seed, faults)
        self.memory = Memory()
        self.stores = make_stores(self.memory, lambda: EPOCH + timedelta(seconds=world.now))
        self.inbox = Inbox(world)
        self.users = random.Random(seed + 1)
        self._claim_users = random.Random(seed + 2)
        self.caller: Caller | None = None
        self.rested: set[SessionStatus] = set()
        settings = ManagerSettings.model_validate(MANAGER_SETTINGS)
        self.nodes = [Node(world, f"node-{number}") for number in range(plan.agents)]
        if plan.has_gpus:
            for node in self.nodes:
                node.plugins[gpus.PLUGIN_KEY] = gpus.SimulatedGpu
                node.claims_holding = partial(self._claims_holding, node)
        self.invariants = Invariants(world, self.memory, self.nodes)
        stores = with_faults(world, self.stores, self.invariants.check_after_commit)
        self.managers = {
            name: ManagerDaemon(world, name, stores, settings, self.inbox, self._clock())
            for name in [f"m-{number}" for number in range(plan.managers)]
        }
        self.agents = [
            AgentDaemon(world, node, self.managers, _agent_settings(number, has_gpus=plan.has_gpus), self._clock())
            for number, node in enumerate(self.nodes)
        ]

    def _claims_holding(self, node: Node, device_id: str) -> list[str]:
        """Returns the claims that hold a device or partition of a node."""
        agent_id = f"i-{self.nodes.index(node)}"
        return [
            claim.name
            for claim in self.memory.claims.values()
            if claim.agent == agent_id
            and claim.status in (ClaimStatus.IN_USE, ClaimStatus.IDLE)
            and any(device_id in devices for devices in claim.devices.values())
        ]

    def _clock(self) -> SkewedClock:
        rng, skew_s = self.world.rng, self.world.faults.skew_s
        drift = rng.uniform(0.95, 1.05) if skew_s else 1.0
        return SkewedClock(self.world, skew_s=rng.uniform(-1.0, 1.0) * skew_s, drift=drift)

    # ---- running

    async def begin(self) -> None:
        """Fills the database and starts every daemon."""
        clock, policy = SkewedClock(self.world), self.plan.policy
        stores = self.stores
        id_generator = SeededIds(self.seed)
        identity = IdentityService(stores.identities, stores.sessions, clock, id_generator)
        bootstrap_result = await Bootstrap(
            stores.identities, stores.resource_groups, identity, clock, id_generator
        ).run()
        assert bootstrap_result.user is not None
        credentials = await stores.identities.credentials(bootstrap_result.user.access_key)
        assert credentials is not None
        self.caller = credentials.caller
        options = {"preemption": {"enabled": policy.preempts}, "placement": policy.placement}
        await stores.resource_groups.change_resource_group("default", scheduler=policy.order, scheduler_opts=options)
        for manager in self.managers.values():
            manager.mean_steps = self.plan.mean_manager_steps
            manager.start()
        for agent in self.agents:
            agent.mean_steps = self.plan.mean_agent_steps
            agent.start()

    def sessions(self) -> list[Session]:
        return list(self.memory.sessions.values())

    def live_managers(self) -> list[ManagerDaemon]:
        return [daemon for daemon in self.managers.values() if daemon.is_up and daemon.manager is not None]

    # ---- what users do

    def request(self, number: int) -> CreateSession:
        """Returns a random request for a session."""
        users_rng = self.users
        is_multi_node = users_rng.random() < 0.3
        session_type = users_rng.choice([SessionType.INTERACTIVE, SessionType.BATCH, SessionType.INTERACTIVE])
        is_batch = session_type is SessionType.BATCH
        request = CreateSession(
            image="python",
            name=f"session-{number}" if users_rng.random() < 0.7 else None,
            type=session_type,
            enqueue_only=True,
            cluster_size=users_rng.randint(2, 3) if is_multi_node else 1,
            cluster_mode=users_rng.choice(list(ClusterMode)) if is_multi_node else ClusterMode.SINGLE_NODE,
            startup_command=users_rng.choice(["sleep 3", "sleep 20", "exit 3", "echo hello"]) if is_batch else None,
            resources=self._random_resources(),
            priority=users_rng.choice([None, None, 1]),
            starts_at=users_rng.choice([None, None, None, "30s"]),
            callback_url=f"https://callbacks.example/{number}" if users_rng.random() < 0.7 else None,
            batch_timeout_s=users_rng.choice([None, 10.0]) if is_batch else None,
        )
        names_claim = request.cluster_size == 1 and self._claim_users.random() < 0.6
        if not self.plan.claims or not names_claim:
            return request
        claim_name = f"claim-{self._claim_users.randrange(self.plan.claims)}"
        return replace(request, claim=claim_name, resources={"cpu": (request.resources or {})["cpu"]})

    async def create_claims(self) -> None:
        """Creates the device claims of the plan, some with a short idle time and some without.

        The idle times end while users act.
        """
        for number in range(self.plan.claims):
            request = CreateClaim(
                name=f"claim-{number}",
                resources=self._random_claim_resources(),
                idle_timeout_s=self._claim_users.choice([5.0, 0.0]),
            )
            for _ in range(20):
                if any(claim.name == request.name for claim in self.memory.claims.values()):
                    break
                await self._ask_about_claims(partial(_create_claim, self._caller(), request))
                await asyncio.sleep(0.5)  # simulated: a user tries again

    def _random_claim_resources(self) -> dict[str, str | int | float]:
        if self.plan.has_gpus:
            return {self._claim_users.choice(list(gpus.UNITS_BY_SLOT)): 1}
        return {"mock.shares": self._claim_users.choice(["0.5", "1", "2"])}

    async def _ask_about_claims(self, claim_request: Callable[[ClaimService], Coroutine[Any, Any, object]]) -> None:
        """Sends one request about claims to a manager."""
        managers = self.live_managers()
        if not managers:
            return
        manager = self._claim_users.choice(managers)
        try:
            async with asyncio.timeout(15.0):
                await manager.ask(lambda live: claim_request(live.services.claims))
        except (BackendError, TimeoutError, ProcessDied) as e:
            self.world.trace("claim", type(e).__name__)

    async def change_claim(self, name: str, action: str) -> None:
        """Sends one request to release or to delete a claim."""
        self.world.trace("user", action, name)
        if action == "release":
            await self._ask_about_claims(lambda claims: claims.release(self._caller(), name))
        else:
            await self._ask_about_claims(lambda claims: claims.delete(self._caller(), name))

    def _random_resources(self) -> dict[str, str | int | float]:
        users_rng = self.users
        resources: dict[str, str | int | float] = {
            "cpu": users_rng.randint(1, 5),
            "mock.shares": users_rng.choice(["0", "0.3", "0.5", "1"]),
        }
        if self.plan.has_gpus:
            resources |= {"mock.shares": "0", users_rng.choice(list(gpus.UNITS_BY_SLOT)): 1}
        return resources

    async def create(self, request: CreateSession, token: str) -> Session | None:
        """Repeats a creation request with its token until it is answered. Returns None if it is refused."""
        call_id = uuid5(NAMESPACE_URL, token)
        for _ in range(8):
            serving_managers = self.live_managers()
            if serving_managers:
                manager = self.users.choice(serving_managers)
                try:
                    async with asyncio.timeout(15.0):
                        reply = await manager.ask(
                            lambda live: live.services.sessions.create(self._caller(), request, call_id=call_id)
                        )
                    self.invariants.record_session_id(reply.session.id, token)
                    return reply.session  # type: ignore[no-any-return]  # of a manager
                except (BackendError, TimeoutError) as e:
                    self.world.trace("create", type(e).__name__)
            await asyncio.sleep(self.users.uniform(0.5, 3.0))
        return None

    def _caller(self) -> Caller:
        assert self.caller is not None
        return self.caller

    async def change(self, session_id: SessionId, action: str) -> None:
        """Sends one request to end or to restart a session."""
        managers = self.live_managers()
        if not managers:
            return
        manager, caller = self.users.choice(managers), self._caller()
        self.world.trace("user", action, session_id)
        try:
            async with asyncio.timeout(60.0):
                if action == "restart":
                    await manager.ask(lambda live: live.services.sessions.restart(caller, str(session_id)))
                else:
                    await manager.ask(
                        lambda live: live.services.sessions.destroy(caller, str(session_id), forced=action == "force")
                    )
        except (BackendError, TimeoutError) as e:
            self.world.trace("user", action, type(e).__name__)

    async def run_users(self) -> None:
        """Lets users create, end and restart sessions for as long as the plan says."""
        users_rng, plan = self.users, self.plan
        tasks = []
        await self.create_claims()
        for number in range(plan.requests):
            await asyncio.sleep(users_rng.expovariate(plan.requests / plan.busy_s))
            tasks.append(self.world.spawn(None, self.create(self.request(number), f"token-{number}")))
            live_ids = [session.id for session in self.sessions() if not session.status.is_final]
            if live_ids and users_rng.random() < 0.5:
                action = users_rng.choice(["destroy", "destroy", "force", "restart"])
                tasks.append(self.world.spawn(None, self.change(users_rng.choice(live_ids), action)))
            if plan.claims and self._claim_users.random() < 0.4:
                action = self._claim_users.choice(["release", "release", "release", "delete"])
                claim_name = f"claim-{self._claim_users.randrange(plan.claims)}"
                tasks.append(self.world.spawn(None, self.change_claim(claim_name, action)))
        await asyncio.wait(tasks)

    # ---- faults of the daemons

    async def inject_faults(self) -> None:
        """Causes faults until cancelled: stops processes, fills disks, reboots nodes, fails devices and sets clocks."""
        rng = self.world.rng
        while True:
            await asyncio.sleep(rng.expovariate(1 / 8.0))
            agent = rng.choice(self.agents)
            manager = rng.choice(list(self.managers.values()))
            fault_name = rng.choice(
                ["stop manager", "stop agent", "full", "reboot", "device", "clock", "away", "plugin", "exits"]
            )
            self.world.trace("befalls", fault_name, agent.name, manager.name)
            match fault_name:
                case "stop manager":
                    self._pause(manager, rng.uniform(1.0, 20.0))
                case "stop agent":
                    self._pause(agent, rng.uniform(1.0, 25.0))
                case "full":
                    agent.disk.is_full = True
                    self.world.call_later(rng.uniform(1.0, 10.0), setattr, agent.disk, "is_full", False)
                case "reboot" if rng.random() < 0.3:
                    agent.process.kill()
                    agent.node.reboot()
                case "device":
                    device = rng.choice([("mock", "0"), ("mock", "1"), ("cpu", "3")])
                    agent.node.unhealthy.add(device)
                    self.world.call_later(rng.uniform(5.0, 30.0), agent.node.unhealthy.discard, device)
                case "plugin":
                    agent.node.is_plugin_broken = True
                    self.world.call_later(rng.uniform(1.0, 20.0), setattr, agent.node, "is_plugin_broken", False)
                case "exits":
                    agent.node.end_half()
                case "clock":
                    agent.clock.skew_s = rng.uniform(-1.0, 1.0) * self.world.faults.skew_s
                    manager.clock.skew_s = rng.uniform(-1.0, 1.0) * self.world.faults.skew_s
                case "away" if rng.random() < 0.3:
                    self._pause(agent, rng.uniform(60.0, 100.0))

    def _pause(self, daemon: ManagerDaemon | AgentDaemon, duration_s: float) -> None:
        daemon.process.stop()
        self.world.call_later(duration_s, daemon.process.go_on)

    # ---- the end

    async def come_to_rest(self) -> None:
        """Stops all faults and waits until nothing changes any more. Raises AssertionError if it never rests."""
        self.world.faults = NO_FAULTS
        for daemon in (*self.managers.values(), *self.agents):
            daemon.mean_steps = None
            daemon.process.fuse = None
            daemon.process.go_on()
        deadline = self.world.now + _MAX_SETTLING_S
        unrest_reason, quiet_rounds, explained_by = "", 0, math.inf
        while self.world.now < deadline:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            self.world.loop.sweep()
            self.invariants.watch()
            unrest_reason = self._unrest_reason() or await self._describe_starved_sessions() or self._unrest_reason()
            if not unrest_reason and any(map(is_unexplained, self.sessions())):
                explained_by = min(explained_by, self.world.now + _EXPLANATION_S)
                if self.world.now < explained_by:
                    unrest_reason = "a session waits and nobody says why"
            quiet_rounds = quiet_rounds + 1 if not unrest_reason else 0
            if quiet_rounds >= 2:
                return
        raise AssertionError(f"no rest after {_MAX_SETTLING_S:.0f} s: {unrest_reason}")

    def _unrest_reason(self) -> str:
        unsettled_sessions = [
            f"{checked_session.name} is {checked_session.status}"
            for checked_session in self.sessions()
            if checked_session.status not in RESTING_STATUSES
        ]
        if unsettled_sessions:
            return "; ".join(unsettled_sessions)
        leader = next((candidate for candidate in self.managers.values() if candidate.leads), None)
        if leader is None or leader.manager is None:
            return "no manager leads"
        if not all(agent.is_up and agent.agent is not None for agent in self.agents):
            return "an agent is down"
        claim_ids_in_use = {
            session.claim_id for session in self.sessions() if any(len(kernel.holds) for kernel in session.kernels)
        }
        for claim in self.memory.claims.values():
            if claim.status in (ClaimStatus.ALLOCATING, ClaimStatus.IN_USE) and claim.id not in claim_ids_in_use:
                return f"the claim {claim.name} is {claim.status} for nobody"
            if claim.is_deleting and all(
                checked_session.status.is_final
                for checked_session in self.sessions()
                if checked_session.claim_id == claim.id
            ):
                return f"the claim {claim.name} is not deleted"
        for session in self.sessions():
            due_at = session.not_before or session.starts_at
            left_s = (due_at - leader.clock.now()).total_seconds() if due_at is not None else 0.0
            if session.status is SessionStatus.PENDING and 0.0 < left_s < 3600.0:
                return f"{session.name} waits for its time"
        if leftover_text := first_leftover(self.memory, self.agents):
            return leftover_text
        return ""

    async def _describe_starved_sessions(self) -> str:
        """Returns a text with the number of sessions that wait although they fit. Empty if there are none."""
        leader = next(candidate for candidate in self.managers.values() if candidate.leads)
        snapshot, policy = await self.world.call(leader.process, lambda: leader.manager.scheduling("default"))  # type: ignore[union-attr]  # it leads
        plan = decide(snapshot, policy, now=leader.clock.now(), rng=random.Random(0))
        if plan.placements or plan.evictions:
            return f"{len(plan.placements)} sessions fit, {len(plan.evictions)} are to make way"
        return ""

    async def fill(self) -> None:
        """Checks that all slots are free, by running one session on each node that takes the whole node.

        Raises AssertionError.
        """
        request = CreateSession(image="python", enqueue_only=True, resources={"cpu": 8, "mock.shares": "2"})
        whole_node_sessions = [await self.create(request, f"whole-{number}") for number in range(len(self.agents))]
        deadline = self.world.now + _HEALTH_RECOVERY_S
        while (session_statuses := self._statuses(whole_node_sessions)) != {SessionStatus.RUNNING}:
            if self.world.now > deadline:
                raise AssertionError(f"sessions of whole nodes are {sorted(session_statuses)}")
            await asyncio.sleep(_CHECK_INTERVAL_S)
        await self.destroy_all()
        await self.come_to_rest()

    def _statuses(self, sessions: Sequence[Session | None]) -> set[str]:
        return {
            self.memory.sessions[session.id].status.value if session is not None else "refused" for session in sessions
        }

    async def watch(self) -> None:
        """Checks repeatedly for sessions that stay too long in a transient state."""
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            self.invariants.watch()

    async def destroy_all(self) -> None:
        for session in self.sessions():
            for _ in range(10):
                if self.memory.sessions[session.id].status.is_final:
                    break
                await self.change(session.id, "force")
                if self.memory.sessions[session.id].status is SessionStatus.TERMINATING:
                    break
                await asyncio.sleep(1.0)
        for claim in list(self.memory.claims.values()):
            for _ in range(10):
                if claim.id not in self.memory.claims or self.memory.claims[claim.id].is_deleting:
                    break
                await self.change_claim(str(claim.id), "delete")
                await asyncio.sleep(1.0)  # simulated: a user tries again


async def _create_claim(caller: Caller, request: CreateClaim, claims: ClaimService) -> object:
    return await claims.create(caller, request)
