"""Private networks of cluster sessions: a network policy each, and the pods' addresses in /etc/hosts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID

from ai.backend.common.errors import CreationDenied
from ai.backend.common.ids import SessionId
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.errors import ObjectExists, RequestDenied
from ai.backend.node.kube_api.resources import NETWORK_POLICIES
from ai.backend.plugin.runtime import NetworkView
from ai.backend.runtime.kubernetes.policies import session_policy
from ai.backend.runtime.kubernetes.records import INSTANCE_LABEL, SESSION_LABEL, policy_name
from ai.backend.runtime.kubernetes.settings import KubernetesRuntimeSettings


class SessionNetworks:
    """Makes, lists and removes the networks of sessions. The policy is the record of a network."""

    def __init__(self, api: KubeApi, settings: KubernetesRuntimeSettings) -> None:
        self._api = api
        self._settings = settings

    async def create(self, session_id: SessionId, hosts: Sequence[str]) -> NetworkView:
        """Returns the network, whose addresses are empty: pods have theirs before any program of a user runs."""
        policy = session_policy(self._settings.instance, session_id, hosts)
        with suppress(ObjectExists):
            try:
                await self._api.create(NETWORK_POLICIES, policy, self._settings.namespace)
            except RequestDenied as refusal:
                raise CreationDenied(f"the cluster refuses the session's network: {refusal.message}") from refusal
        addresses = dict.fromkeys(hosts, "")
        return NetworkView(session_id=session_id, network_id=policy_name(session_id), addresses=addresses)

    async def remove(self, session_id: SessionId) -> None:
        await self._api.delete(NETWORK_POLICIES, policy_name(session_id), self._settings.namespace)

    async def sessions(self) -> Sequence[SessionId]:
        selector = f"{INSTANCE_LABEL}={self._settings.instance},{SESSION_LABEL}"
        policies, _ = await self._api.list(NETWORK_POLICIES, self._settings.namespace, label_selector=selector)
        sessions: list[SessionId] = []
        for policy in policies:
            with suppress(ValueError):
                sessions.append(SessionId(UUID(policy.metadata.labels[SESSION_LABEL])))
        return sessions
