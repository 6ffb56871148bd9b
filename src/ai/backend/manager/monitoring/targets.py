"""Lists the targets of Prometheus: the manager, its agents, storage proxies and app proxies."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypedDict
from urllib.parse import urlsplit

import msgspec

from ai.backend.common.errors import BackendError
from ai.backend.common.states import AgentStatus
from ai.backend.manager.agents.store import AgentStore
from ai.backend.manager.resource_groups.store import ResourceGroupStore
from ai.backend.manager.service_ports.app_proxies import coordinator_of
from ai.backend.manager.service_ports.app_proxy_gateway import CoordinatorAddress
from ai.backend.manager.storage_proxy import StorageProxies

log = logging.getLogger(__name__)
AGENT_PATH = "/metrics/agents/"


class TargetGroup(TypedDict):
    """A group of targets as Prometheus' HTTP service discovery has it."""

    targets: list[str]
    labels: dict[str, str]


class Coordinators(Protocol):
    """Sends requests to the coordinators of app proxies, from which the workers are read."""

    async def call(
        self, coordinator: CoordinatorAddress, method: str, path: str, body: Any = None
    ) -> Mapping[str, Any]: ...


class ScrapeTargets(msgspec.Struct, frozen=True):
    """Finds the targets of Prometheus in an installation.

    Agents have no server of their own: the target of an agent is a path of the manager, which answers 503 while the
    agent is silent. ``__meta_backendai_role`` is manager, agent, storage-proxy, app-proxy-coordinator or
    app-proxy-worker.
    """

    agents: AgentStore
    resource_groups: ResourceGroupStore
    storage_proxies: StorageProxies | None
    coordinators: Coordinators

    async def target_groups(self, own_address: str, *, scheme: str) -> list[TargetGroup]:
        """Returns all targets. ``own_address`` is the manager's as the caller reaches it. A coordinator that does not
        answer leaves its workers out."""
        # Each agent is a target of its own: the manager's answer has what it measures itself.
        target_groups = [_target_group("manager", f"{scheme}://{own_address}", {"__param_others": "false"})]
        for agent in await self.agents.agents():
            if agent.status in (AgentStatus.ALIVE, AgentStatus.LOST):
                labels = {"agent": str(agent.id), "__metrics_path__": f"{AGENT_PATH}{agent.id}"}
                target_groups.append(_target_group("agent", f"{scheme}://{own_address}", labels))
        target_groups += [*await self._storage_proxy_targets(), *await self._app_proxy_targets()]
        return target_groups

    async def _storage_proxy_targets(self) -> Sequence[TargetGroup]:
        if self.storage_proxies is None:
            return ()
        try:
            proxies = (await self.storage_proxies.settings()).proxies
        except BackendError as e:
            log.warning("the storage proxies are not known now: %s", e)
            return ()
        return [_target_group("storage-proxy", proxy.manager_api, {"name": proxy.name}) for proxy in proxies.values()]

    async def _app_proxy_targets(self) -> Sequence[TargetGroup]:
        groups = await self.resource_groups.resource_groups()
        coordinators = {address.url: address for group in groups if (address := coordinator_of(group)) is not None}
        target_groups: list[TargetGroup] = []
        for coordinator in coordinators.values():
            target_groups.append(_target_group("app-proxy-coordinator", coordinator.url))
            try:
                reply = await self.coordinators.call(coordinator, "GET", "/api/worker")
                target_groups += _worker_targets(reply.get("workers", ()))
            except (BackendError, KeyError, TypeError) as e:
                log.warning("the workers of the app proxy %s are not known now: %s", coordinator.url, e)
        return target_groups


def _worker_targets(workers: Iterable[Mapping[str, Any]]) -> Iterable[TargetGroup]:
    for worker in workers:
        host, port = str(worker["hostname"]), int(worker["api_port"])
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        yield _target_group("app-proxy-worker", f"http://{address}", {"name": str(worker["authority"])})


def _target_group(role: str, url: str, labels: Mapping[str, str] | None = None) -> TargetGroup:
    url_parts = urlsplit(url)
    default_port = 443 if url_parts.scheme == "https" else 80
    host = url_parts.hostname or ""
    address = f"{f'[{host}]' if ':' in host else host}:{url_parts.port or default_port}"
    own_labels = {"__meta_backendai_role": role, "__scheme__": url_parts.scheme}
    return {"targets": [address], "labels": {**own_labels, **(labels or {})}}
