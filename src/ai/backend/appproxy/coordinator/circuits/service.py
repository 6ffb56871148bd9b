"""Makes circuits for browsers and endpoints, and removes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec

from ai.backend.appproxy.coordinator.circuits.links import Links
from ai.backend.appproxy.coordinator.circuits.model import (
    Admission,
    AppRequest,
    Setup,
    SlotTaken,
    StoredCircuit,
)
from ai.backend.appproxy.coordinator.circuits.placement import (
    check_networks,
    check_redirect,
    check_subdomain,
    choose_port,
    random_name,
    suitable_workers,
)
from ai.backend.appproxy.coordinator.circuits.store import CircuitStore
from ai.backend.appproxy.coordinator.circuits.tokens import TokenIssuer, hash_of, new_token
from ai.backend.appproxy.coordinator.workers.model import Worker
from ai.backend.appproxy.coordinator.workers.service import WorkerService
from ai.backend.common.appproxy_errors import (
    FrontendTimeout,
    NoSuchObject,
    ProtocolNotInteractive,
    WorkerSilent,
)
from ai.backend.common.errors import AuthenticationFailed, LimitExceeded, Unavailable
from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import (
    SETUP_PATH,
    AppMode,
    Circuit,
    FrontendMode,
    ProxyProtocol,
    RouteInfo,
)
from ai.backend.infra.clock import Clock

_SLOT_ATTEMPTS = 16
_FRONTEND_ATTEMPTS = 3
MAX_PER_SESSION = 64
"""The largest number of circuits of one session. Each circuit takes a port of a worker."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Holds times in seconds: until a set-up expires, until an unused circuit is removed, and how long a port rests."""

    setup_s: float
    circuit_s: float
    rest_s: float


@dataclass(slots=True)
class CircuitService:
    """Creates, finds and removes circuits."""

    store: CircuitStore
    workers: WorkerService
    links: Links
    tokens: TokenIssuer
    clock: Clock
    limits: Limits

    async def permit(self, setup: Setup) -> str:
        """Returns a token by which one browser may reach a service of a session once."""
        token = new_token()
        expires_at = self.clock.now() + timedelta(seconds=self.limits.setup_s)
        await self.store.add_setup(hash_of(token), setup, expires_at)
        return token

    async def check(self, token: str, session_id: UUID, request: AppRequest) -> Setup:
        """Returns the set-up of a token, if the token is valid for the session and the requested app.

        Raises AuthenticationFailed for a forged, used or expired token, or one of another session or app;
        ProtocolNotInteractive.
        """
        setup = await self.store.setup(hash_of(token), self.clock.now())
        if setup is None or setup.session_id != session_id or setup.app not in (None, request.app):
            raise AuthenticationFailed("The address has expired or was used already: start the service again.")
        if request.protocol in (ProxyProtocol.GRPC, ProxyProtocol.H2):
            raise ProtocolNotInteractive
        return setup

    async def admit(self, token: str, session_id: UUID, request: AppRequest, client: str) -> Admission:
        """Gives a browser a circuit to an app: returns the circuit and the URL that signs the browser in.

        Uses the token up. ``client`` is the address of the browser. Raises as :meth:`check`; InvalidInput; SlotTaken;
        Unavailable: no worker is suitable or none answers.
        """
        request = _check_app_request(request, client)
        setup = await self.check(token, session_id, request)
        if not await self.store.use_setup(hash_of(token), self.clock.now()):
            raise AuthenticationFailed("The address was used already: start the service again.")
        try:
            return await self._admit(setup, request)
        except BaseException:
            await self.store.release_setup(hash_of(token))
            raise

    async def _admit(self, setup: Setup, request: AppRequest) -> Admission:
        existing = None if request.no_reuse else await self._reusable(setup, request)
        circuit = _circuit_of(setup, request, self.clock.now().isoformat())
        if existing is None:
            if len(await self.store.ids_of_sessions([setup.session_id])) >= MAX_PER_SESSION:
                raise LimitExceeded(f"The session has {MAX_PER_SESSION} circuits, as many as it may have.")
            circuit = await self.open(circuit, dict(setup.tags))
        else:
            circuit = _merge_circuits(existing, circuit)
            if circuit != existing:
                await self.store.replace(circuit)
            await self.links.wait_delivered(circuit.id)
        worker = await self.workers.get(circuit.worker)
        return Admission(circuit=circuit, url=self._setup_url(worker, circuit, request), reused=existing is not None)

    def _setup_url(self, worker: Worker, circuit: Circuit, request: AppRequest) -> str:
        origin = worker.url_of(circuit.port, circuit.subdomain)
        if circuit.protocol is ProxyProtocol.TCP:
            return f"tcp://{origin.partition('://')[2]}"
        code = self.tokens.setup_code(circuit.id, circuit.user_id, request.redirect)
        return f"{origin}{SETUP_PATH}?code={code}"

    async def _reusable(self, setup: Setup, request: AppRequest) -> Circuit | None:
        living_worker_ids = {worker.id: worker for worker in await self.workers.all() if worker.nodes > 0}
        for stored in await self.store.of_session(setup.session_id, request.app):
            circuit = stored.circuit
            if (
                stored.failure is None
                and circuit.user_id == setup.user_id
                and circuit.protocol == request.protocol
                and request.port in (None, circuit.port)
                and request.subdomain in (None, circuit.subdomain)
                and circuit.worker in living_worker_ids
                and living_worker_ids[circuit.worker].has_slot(circuit.port, circuit.subdomain)
            ):
                return circuit
        return None

    async def open(self, draft: Circuit, tags: dict[str, str]) -> Circuit:
        """Chooses a worker and a slot for a draft of a circuit, and returns the circuit once the worker serves it.

        A port or name of the draft is what is wanted. A slot that the worker cannot open is replaced by another one.
        """
        broken_ports: set[int] = set()
        for attempt in range(_FRONTEND_ATTEMPTS):
            circuit = await self._allocate(draft, tags, broken_ports)
            try:
                await self.links.wait_delivered(circuit.id)
                return circuit
            except FrontendTimeout:
                await self.remove([circuit.id])
                if circuit.port is not None:
                    broken_ports.add(circuit.port)
                if draft.port is not None or draft.subdomain is not None or attempt == _FRONTEND_ATTEMPTS - 1:
                    raise
            except BaseException:
                await self.remove([circuit.id])
                raise
        raise FrontendTimeout

    async def _allocate(self, draft: Circuit, tags: dict[str, str], broken_ports: set[int]) -> Circuit:
        has_requested_slot = draft.port is not None or draft.subdomain is not None
        for _ in range(_SLOT_ATTEMPTS):
            worker = await self._choose_worker(draft, tags)
            circuit = replace(
                draft,
                id=uuid4(),
                worker=worker.id,
                frontend_mode=worker.frontend_mode,
                **await self._slot(draft, worker, broken_ports),
            )
            try:
                await self.store.add(circuit, self.clock.now())
                return circuit
            except SlotTaken:
                if has_requested_slot:
                    raise
        raise SlotTaken("Other circuits are faster: no free slot could be taken.")

    async def _choose_worker(self, draft: Circuit, tags: dict[str, str]) -> Worker:
        workers = await self.workers.all()
        suitable_ones = suitable_workers(
            workers,
            await self.store.slots(),
            mode=draft.app_mode,
            protocol=draft.protocol,
            tags=tags,
            port=draft.port,
            subdomain=draft.subdomain,
        )
        if suitable_ones:
            return suitable_ones[0]
        if not any(worker.nodes for worker in workers):
            raise WorkerSilent
        raise Unavailable(f"No worker has a free slot for this {draft.app_mode} app over {draft.protocol}.")

    async def _slot(self, draft: Circuit, worker: Worker, broken_ports: set[int]) -> dict[str, Any]:
        if worker.frontend_mode is FrontendMode.WILDCARD:
            return {"port": None, "subdomain": draft.subdomain or random_name()}
        if draft.port is not None:
            return {"port": draft.port, "subdomain": None}
        used_slots = (await self.store.slots(worker.id)).get(worker.id, ())
        resting_ports = await self.store.resting_ports(worker.id, self.clock.now(), draft.user_id)
        return {"port": choose_port(worker, used_slots, resting_ports | broken_ports), "subdomain": None}

    async def get(self, circuit_id: UUID) -> StoredCircuit:
        """Returns a circuit. Raises NoSuchObject."""
        stored = await self.store.circuit(circuit_id)
        if stored is None:
            raise NoSuchObject("circuit")
        return stored

    async def remove(self, circuit_ids: Sequence[UUID]) -> Sequence[UUID]:
        """Removes circuits at the coordinator and at workers, and returns the circuits that existed."""
        now = self.clock.now()
        rest_until = now + timedelta(seconds=self.limits.rest_s)
        removed_ids = await self.store.remove(circuit_ids, now=now, rest_until=rest_until)
        self.links.wake()
        return removed_ids

    async def remove_sessions(self, session_ids: Sequence[UUID]) -> int:
        """Removes the circuits and set-ups of the apps of sessions; returns how many circuits there were."""
        await self.store.remove_setups(session_ids)
        return len(await self.remove(await self.store.ids_of_sessions(session_ids)))

    async def remove_unneeded(self) -> None:
        """Removes circuits that were unused for long or whose worker lost their slot, and deletes expired records."""
        now = self.clock.now()
        unneeded_ids = list(await self.store.circuits_without_slot())
        if self.limits.circuit_s > 0:
            unneeded_ids += await self.store.unused_since(now - timedelta(seconds=self.limits.circuit_s))
        await self.remove(unneeded_ids)
        await self.store.purge(now)


def _check_app_request(request: AppRequest, client: str) -> AppRequest:
    """Checks a browser's request for an app, and returns it in canonical form.

    A TCP app has no credentials, so it serves the address that asks for it, unless others are named or it is public
    (serving anchors 11). Raises InvalidInput.
    """
    networks = check_networks(request.allowed_client_ips) if request.allowed_client_ips else None
    if request.protocol is ProxyProtocol.TCP and networks is None and not request.open_to_public and client:
        networks = check_networks(client)
    return replace(
        request,
        redirect=check_redirect(request.redirect or "/"),
        subdomain=check_subdomain(request.subdomain) if request.subdomain is not None else None,
        allowed_client_ips=networks,
    )


def _circuit_of(setup: Setup, request: AppRequest, now: str) -> Circuit:
    placeholder_id = UUID(int=0)
    route = RouteInfo(
        session_id=setup.session_id,
        kernel_host=setup.kernel_host,
        kernel_port=setup.kernel_port,
        protocol=request.protocol,
        gateway=setup.gateway,
    )
    return Circuit(
        id=placeholder_id,
        app=request.app,
        protocol=request.protocol,
        worker=placeholder_id,
        app_mode=AppMode.INTERACTIVE,
        frontend_mode=FrontendMode.PORT,
        envs=dict(request.envs or {}),
        arguments=request.args,
        open_to_public=request.open_to_public,
        allowed_client_ips=request.allowed_client_ips,
        port=request.port,
        subdomain=request.subdomain,
        user_id=setup.user_id,
        route_info=[route],
        session_ids=[setup.session_id],
        created_at=now,
        updated_at=now,
    )


def _merge_circuits(existing: Circuit, requested: Circuit) -> Circuit:
    """Returns an existing circuit with the route and the rules of a new request added."""
    merged_circuit = replace(
        existing,
        envs=requested.envs,
        arguments=requested.arguments,
        open_to_public=requested.open_to_public,
        allowed_client_ips=requested.allowed_client_ips,
        route_info=requested.route_info,
    )
    return existing if merged_circuit == existing else replace(merged_circuit, updated_at=requested.updated_at)
