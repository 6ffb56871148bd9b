"""Wires the controllers of kube-acc: one process of several leads, by a Lease."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

from ai.backend.infra.loop import cancel_all
from ai.backend.infra.retry import Backoff
from ai.backend.kubeacc.controllers.manager import ControllerManager
from ai.backend.kubeacc.policies.roles import CONTROLLERS_ACCOUNT, NAMESPACE
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.configuration import cluster_address
from ai.backend.node.kube_api.election import Election


def connect(kubeconfig: Path | None, context_name: str = "") -> KubeApi:
    """Returns a client of the cluster that a kubeconfig file names, or of this pod. Raises InvalidInput."""
    address = cluster_address(kubeconfig, context_name)
    return KubeApi(address, lambda: Backoff(0.2, 30.0, jitter=0.5), user_agent="kube-acc")


async def run_controllers(kubeconfig: Path | None, stop: asyncio.Event, *, identity: str = "") -> None:
    """Leads or waits to lead until ``stop`` is set. Raises InvalidInput: the cluster cannot be named."""
    api, lease_api = connect(kubeconfig), connect(kubeconfig)
    identity = identity or f"{socket.gethostname()}-{os.getpid()}"
    election = Election(lease_api, CONTROLLERS_ACCOUNT, NAMESPACE, identity)

    async def lead(term: int) -> None:
        await ControllerManager(api).run(term)

    leading = asyncio.ensure_future(election.run(lead))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        done, _ = await asyncio.wait({leading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if leading in done:
            leading.result()
    finally:
        await cancel_all(leading, stopping)
        await api.close()
        await lease_api.close()
