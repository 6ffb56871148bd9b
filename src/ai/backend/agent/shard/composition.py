"""Wires a shard together: the cluster's API, the Lease, the link to the managers, and the agents of the nodes."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from uuid import uuid4

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.directory.directory import DataDirectory
from ai.backend.agent.link.managers import SharedConfiguration, key_files, named_managers
from ai.backend.agent.runtimes import parse_runtime_settings
from ai.backend.agent.shard.inventory import NodeInventory
from ai.backend.agent.shard.shard import MakeRuntime, Shard
from ai.backend.common.errors import BackendError, Conflict
from ai.backend.infra.files import write_atomically
from ai.backend.infra.process.daemon import on_hang_up
from ai.backend.infra.process.memory import collect_rarely, trim_while_running
from ai.backend.infra.retry import Backoff
from ai.backend.infra.rpc.fanout import ManagerFanout
from ai.backend.infra.rpc.zmq.agent import ZmqAgentEndpoint
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.configuration import ClusterAddress, cluster_address
from ai.backend.node.kube_api.election import Election
from ai.backend.node.kube_api.resources import LEASES

log = logging.getLogger(__name__)
_BEATS_GATHER_S = 0.5
"""The beats of all nodes within so many seconds are one call."""
_LOCK_RETRY_S = 0.5
_LEASE_S, _RENEW_DEADLINE_S, _RENEWAL_S = 10.0, 7.0, 1.0
"""Shorter than the cluster's own controllers have them, as sessions are not served meanwhile. A Lease that changes
hands too soon costs a second and no session: the lock on the records keeps the work from being done twice."""
STATE_ANNOTATION = "backend.ai/state"
"""On the Lease: which directory holds the records of the shard's sessions."""
_CONNECTION = "ai.backend.runtime.kubernetes.cluster:ClusterConnection"
_RUNTIME = "ai.backend.runtime.kubernetes.runtime:KubernetesRuntime"


def connect(address: ClusterAddress) -> KubeApi:
    return KubeApi(address, partial(Backoff, 0.5, 30.0, jitter=0.5), user_agent="backendai-shard")


class _Reloads:
    """Reloads the plugins of all nodes when the settings are read again at SIGHUP, if this process holds the Lease.

    The next term begins with the settings that were loaded last.
    """

    def __init__(self, settings: AgentSettings, load: Callable[[], AgentSettings] | None) -> None:
        self.settings = settings
        self.apply: Callable[[AgentSettings], Awaitable[dict[str, str]]] | None = None
        self._load = load
        self._running: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Reads the settings again and reloads the plugins in the background. Raises the errors of the settings."""
        if self._load is None:
            return
        task = asyncio.get_running_loop().create_task(self._reload(self._load()), name="shard-reload")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _reload(self, settings: AgentSettings) -> None:
        updated_tables = {"drivers": settings.kubernetes.drivers, "counted": settings.kubernetes.counted}
        kubernetes_settings = self.settings.kubernetes.model_copy(update=updated_tables)
        self.settings = self.settings.model_copy(
            update={"kubernetes": kubernetes_settings, "plugins": settings.plugins}
        )
        if self.apply is None:
            return
        try:
            reason_of_refused = await self.apply(self.settings)
        except BackendError as e:
            log.error("plugins stay as they are: %s", e)
            return
        for name, reason in reason_of_refused.items():
            log.error("the plugin %s stays as it was: %s", name, reason)
        log.warning("the plugins of all nodes are reloaded")


async def serve(
    settings: AgentSettings, stop: asyncio.Event, *, load: Callable[[], AgentSettings] | None = None
) -> None:
    """Serves the nodes of a cluster whenever this process holds the Lease of the shard, until ``stop`` is set.

    At SIGHUP drivers, counted resources and plugins' settings are reloaded as ``load`` reads them.

    Raises InvalidInput for missing or wrong settings, and Conflict if the records of the shard's sessions are in
    another directory than this process has.
    """
    collect_rarely()
    kubernetes = settings.kubernetes
    address = cluster_address(kubernetes.kubeconfig, kubernetes.context)
    identity = kubernetes.identity or f"{socket.gethostname()}-{uuid4().hex[:8]}"
    parse_runtime_settings(settings)
    reloads = _Reloads(settings, load)
    on_hang_up.append(reloads.begin)
    async with AsyncExitStack() as exit_stack:
        exit_stack.callback(on_hang_up.remove, reloads.begin)
        lease_api = connect(address)
        exit_stack.push_async_callback(lease_api.close)
        election = Election(
            lease_api,
            kubernetes.lease,
            kubernetes.namespace,
            identity,
            lease_s=_LEASE_S,
            renew_deadline_s=_RENEW_DEADLINE_S,
            retry_s=_RENEWAL_S,
            is_patient=True,
        )
        leading_task = asyncio.create_task(
            election.run(lambda term: _serve_nodes(reloads, address, lease_api)), name="shard"
        )
        stop_task = asyncio.create_task(stop.wait(), name="shard-stop")
        try:
            await asyncio.wait({leading_task, stop_task}, return_when=asyncio.FIRST_COMPLETED)
            if leading_task.done():
                leading_task.result()
        finally:
            for task in (leading_task, stop_task):
                task.cancel()
            await asyncio.gather(leading_task, stop_task, return_exceptions=True)


async def _serve_nodes(reloads: _Reloads, address: ClusterAddress, lease_api: KubeApi) -> None:
    """Serves the nodes until cancelled; their sessions go on."""
    settings = reloads.settings
    kubernetes = settings.kubernetes
    await _check_state(settings, lease_api)
    shared_configuration = SharedConfiguration(settings)
    agent_keys = key_files(settings)

    def connect_manager(manager_address: str, key: str) -> ZmqAgentEndpoint:
        return ZmqAgentEndpoint(
            connect=manager_address,
            agent_id=kubernetes.speaker,
            keypair=agent_keys.keypair,
            manager_key=key,
            newest_keys=partial(agent_keys.newest, key),
        )

    async with AsyncExitStack() as exit_stack:
        exit_stack.push_async_callback(shared_configuration.close)
        directory = DataDirectory(settings.data_dir)
        await _lock(directory)
        exit_stack.callback(directory.close)
        managers = named_managers(settings.link) or await shared_configuration.managers()
        settings = await shared_configuration.merged(settings)
        api = connect(address)
        exit_stack.push_async_callback(api.close)
        link = ManagerFanout(connect_manager, managers, beats_gather_s=_BEATS_GATHER_S)
        shard = Shard(settings, _runtimes(settings, api), link.reports)
        exit_stack.push_async_callback(shard.close)
        inventory = NodeInventory(api, kubernetes, settings.agent.resource_group, shard.schedule_comparison)
        exit_stack.push_async_callback(inventory.close)
        exit_stack.push_async_callback(link.stop)
        await inventory.start()
        await link.start(shard.agents)
        if not named_managers(settings.link):
            exit_stack.callback(asyncio.create_task(shared_configuration.follow(link)).cancel)
        log.info("%s serves the managers at %s", kubernetes.speaker, ", ".join(managers))

        async def reload(newest: AgentSettings) -> dict[str, str]:
            return await shard.reload(await shared_configuration.merged(newest), inventory)

        reloads.apply = reload
        exit_stack.callback(setattr, reloads, "apply", None)
        async with trim_while_running():
            await shard.run(inventory)


def _runtimes(settings: AgentSettings, api: KubeApi) -> MakeRuntime:
    """Returns the factory of the nodes' runtimes, which share one connection to the cluster."""
    directory = settings.data_dir / "kubernetes"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    connection = resolve_name(_CONNECTION)(parse_runtime_settings(settings), api, directory)
    make_runtime: MakeRuntime = partial(resolve_name(_RUNTIME), connection)
    return make_runtime


async def _lock(directory: DataDirectory) -> None:
    """Locks the data directory with the shard's records, and waits while another process uses it.

    A process that cannot reach the API server goes on with the records, whatever the Lease says.
    """
    is_logged = False
    while True:
        try:
            directory.open()
        except Conflict as e:
            if not is_logged:
                log.warning("%s; this one waits for its end", e)
            is_logged = True
            await asyncio.sleep(_LOCK_RETRY_S)
        else:
            return


async def _check_state(settings: AgentSettings, api: KubeApi) -> None:
    """Checks that this process has the records of the shard's sessions. A process without them would end the sessions
    as unknown.

    Raises Conflict if the Lease names another directory; the first leader writes its own there.
    """
    kubernetes = settings.kubernetes
    state_id = await asyncio.to_thread(_state_id, settings.data_dir / "shard-id")
    lease = await api.get(LEASES, kubernetes.lease, kubernetes.namespace)
    stored_id = lease.metadata.annotations.get(STATE_ANNOTATION)
    if stored_id is None:
        lease_patch = {"metadata": {"uid": lease.metadata.uid, "annotations": {STATE_ANNOTATION: state_id}}}
        await api.patch(LEASES, kubernetes.lease, lease_patch, kubernetes.namespace)
    elif stored_id != state_id:
        message = (
            f"the records of the sessions of {kubernetes.speaker} are in another directory than {settings.data_dir}:"
            f" processes of one shard share agent.data-dir. If they are lost, end the sessions and delete the lease"
            f" {kubernetes.namespace}/{kubernetes.lease}."
        )
        raise Conflict(message, data={"agent.data-dir": str(settings.data_dir)})


def _state_id(path: Path) -> str:
    """Returns the id of the data directory, made at the first use."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        write_atomically(path, uuid4().hex.encode())
    return path.read_text().strip()
