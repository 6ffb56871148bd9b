"""Waits for resource types that a cluster may get later."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ai.backend.common.errors import BackendError
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.resources import Resource

log = logging.getLogger(__name__)
_RETRY_S = 30.0


async def wait_until_served(api: KubeApi, resource: Resource[Any]) -> None:
    """Returns once the cluster has the resource type. Also waits while the API server is away."""
    logged_problem = ""
    while True:
        try:
            if await api.is_served(resource):
                return
            problem = f"the cluster has no {resource}"
        except BackendError as e:
            problem = f"{resource}: {e.message}"
        if problem != logged_problem:
            log.warning("%s; devices are offered, but not reported", problem)
            logged_problem = problem
        await asyncio.sleep(_RETRY_S)
