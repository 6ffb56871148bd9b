"""An agent that creates one workload, and is killed at a crash point."""

from __future__ import annotations

import asyncio
import sys
import uuid
from pathlib import Path

from ai.backend.common.ids import KernelId, SessionId
from ai.backend.infra.retry import Backoff
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.configuration import read_kubeconfig
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec
from ai.backend.runtime.kubernetes.cluster import ClusterConnection
from ai.backend.runtime.kubernetes.runtime import KubernetesRuntime
from ai.backend.runtime.kubernetes.settings import KubernetesRuntimeSettings

NODE, IMAGE = "node", "docker.io/base/python:1"


async def main(kubeconfig: str, settings: str, directory: str, kernel_id: str, session_id: str) -> None:
    api = KubeApi(read_kubeconfig(Path(kubeconfig)), lambda: Backoff(0.1, 2.0))
    connection = ClusterConnection(KubernetesRuntimeSettings.model_validate_json(settings), api, Path(directory))
    runtime = KubernetesRuntime(connection, NODE)
    await runtime.setup()
    key = WorkloadKey(kernel_id=KernelId(uuid.UUID(kernel_id)), attempt=1)
    session = SessionId(uuid.UUID(session_id))
    await runtime.create(WorkloadSpec(key=key, session_id=session, image=IMAGE, environ={"WHO": "me"}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
