"""Creates, lists and removes the private networks of cluster sessions.

A network consists of one network policy for the session, and of the pods' addresses in /etc/hosts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

from ai.backend.common.errors import CreationDenied
from ai.backend.common.ids import SessionId
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.errors import ObjectExists, RequestDenied
from ai.backend.node.kube_api.resources import NETWORK_POLICIES
from ai.backend.plugin.runtime import NetworkView
from ai.backend.runtime.kubernetes.handles import Handles
from ai.backend.runtime.kubernetes.policies import session_policy
from ai.backend.runtime.kubernetes.records import INSTANCE_LABEL, NODE_ANNOTATION, SESSION_LABEL, policy_name
from ai.backend.runtime.kubernetes.settings import KubernetesRuntimeSettings

LISTED_S = 45.0
"""The seconds for which one listing serves all nodes, since each of their agents asks every minute."""


class SessionNetworks:
    """Makes, lists and removes the networks of sessions on the nodes of one cluster.

    A network's record is its policy, which also names the node of its session.
    """

    def __init__(self, api: KubeApi, settings: KubernetesRuntimeSettings, handles: Handles) -> None:
        self._api = api
        self._settings = settings
        self._handles = handles
        self._node_of_session: dict[SessionId, str] = {}
        self._touched: set[SessionId] = set()
        """The sessions whose networks were made or removed during the present listing."""
        self._listed_at = float("-inf")
        self._lock = asyncio.Lock()

    async def create(self, session_id: SessionId, hosts: Sequence[str], node: str) -> NetworkView:
        """Creates the network policy of a session on a node, and returns the network without the addresses of the pods.

        Pods get their addresses before any program of a user runs.
        """
        if self._node_of_session.get(session_id) != node:
            await self._create(session_id, hosts, node)
            self._node_of_session[session_id] = node
            self._touched.add(session_id)
        addresses = dict.fromkeys(hosts, "")
        return NetworkView(session_id=session_id, network_id=policy_name(session_id), addresses=addresses)

    async def _create(self, session_id: SessionId, hosts: Sequence[str], node: str) -> None:
        settings = self._settings
        policy = session_policy(settings.instance, session_id, hosts, node)
        try:
            await self._api.create(NETWORK_POLICIES, policy, settings.namespace)
        except ObjectExists:  # of this session's earlier place, or from before a restart
            annotations = {"annotations": policy["metadata"]["annotations"]}
            name = policy_name(session_id)
            await self._api.patch(NETWORK_POLICIES, name, {"metadata": annotations}, settings.namespace)
        except RequestDenied as refusal:
            raise CreationDenied(f"the cluster refuses the session's network: {refusal.message}") from refusal

    async def remove(self, session_id: SessionId, node: str) -> None:
        """Removes the network of a session, unless the session is on another node by now."""
        owner_node = self._node_of_session.get(session_id, node)
        if owner_node != node and not self._is_left(session_id, owner_node):
            return
        self._node_of_session.pop(session_id, None)
        self._touched.add(session_id)
        await self._api.delete(NETWORK_POLICIES, policy_name(session_id), self._settings.namespace)

    async def on_node(self, node: str) -> Sequence[SessionId]:
        """Returns the sessions that have a network on a node.

        Sessions without a pod whose network an earlier release made are included.

        What others have made or removed since the last listing is missing.
        """
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if now - self._listed_at > LISTED_S:
                self._touched.clear()
                listed_nodes = await self._list_nodes()
                for session_id in self._touched:
                    listed_nodes.pop(session_id, None)
                touched_nodes = {key: value for key, value in self._node_of_session.items() if key in self._touched}
                self._node_of_session = listed_nodes | touched_nodes
                self._listed_at = now
        return [
            session_id
            for session_id, owner_node in self._node_of_session.items()
            if owner_node == node or self._is_left(session_id, owner_node)
        ]

    def _is_left(self, session_id: SessionId, owner_node: str) -> bool:
        """Returns True for a network of an earlier release that names no node, and whose session has no pods any more.

        Networks of removed nodes are :class:`RemovedNodes`' part: a node that is not ours may be another process's.
        """
        return not owner_node and not self._handles.of_session(session_id)

    async def _list_nodes(self) -> dict[SessionId, str]:
        selector = f"{INSTANCE_LABEL}={self._settings.instance},{SESSION_LABEL}"
        policies, _ = await self._api.list(NETWORK_POLICIES, self._settings.namespace, label_selector=selector)
        node_by_session: dict[SessionId, str] = {}
        for policy in policies:
            try:
                session_id = SessionId(UUID(policy.metadata.labels[SESSION_LABEL]))
            except ValueError:
                continue
            node_by_session[session_id] = policy.metadata.annotations.get(NODE_ANNOTATION, "")
        return node_by_session
