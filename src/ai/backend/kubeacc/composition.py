"""Connects the controllers of kube-acc. If several processes run, a Lease selects the one that leads."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.loop import cancel_all
from ai.backend.infra.retry import Backoff
from ai.backend.kubeacc.controllers.manager import ControllerManager
from ai.backend.kubeacc.controllers.settings import ControllerSettings
from ai.backend.kubeacc.drivers.artifact_sources import RemoteImages
from ai.backend.kubeacc.drivers.artifact_store import ArtifactStore
from ai.backend.kubeacc.drivers.spi import AbstractAcceleratorDriver
from ai.backend.kubeacc.policies.roles import CONTROLLERS_ACCOUNT, NAMESPACE
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.configuration import cluster_address
from ai.backend.node.kube_api.election import Election

DRIVER_GROUP = "backendai_accelerator_driver_v10"
"""The entry points of drivers of an IaaS; each is a class, made by ``from_settings``."""


def connect(kubeconfig: Path | None, context_name: str = "") -> KubeApi:
    """Returns a client of the cluster that a kubeconfig file names, or of this pod. Raises InvalidInput."""
    address = cluster_address(kubeconfig, context_name)
    return KubeApi(address, lambda: Backoff(0.2, 30.0, jitter=0.5), user_agent="kube-acc")


def load_driver(name: str, driver_table: Mapping[str, Any] | None = None) -> AbstractAcceleratorDriver:
    """Creates the driver of an entry point from the driver's table in the settings.

    Raises InvalidInput: there is none of this name, it cannot be made, or its settings are wrong.
    """
    entries = {entry.name: entry for entry in entry_points(group=DRIVER_GROUP)}
    if name not in entries:
        names = ", ".join(sorted(entries)) or "none"
        raise InvalidInput(f"there is no driver {name!r} in the entry points {DRIVER_GROUP}; there are: {names}")
    try:
        driver = entries[name].load().from_settings(driver_table or {})
    except InvalidInput:
        raise
    except ModuleNotFoundError as e:
        raise InvalidInput(f"the driver {name} needs the module {e.name}: install the extra of backend.ai") from None
    except Exception as e:
        raise InvalidInput(f"the driver {name} cannot be made: {type(e).__name__}: {e}") from e
    if not isinstance(driver, AbstractAcceleratorDriver):
        raise InvalidInput(f"{entries[name].value} is no driver of accelerators")
    return driver


async def run_controllers(
    kubeconfig: Path | None,
    stop: asyncio.Event,
    *,
    identity: str = "",
    drivers: Sequence[AbstractAcceleratorDriver] = (),
    settings: ControllerSettings | None = None,
) -> None:
    """Runs the controllers of kube-acc while this process is the leader, until ``stop`` is set.

    A process that is not the leader waits to become the leader.
    Raises InvalidInput: the cluster cannot be named, or a file of the settings cannot be read.
    """
    settings = settings or ControllerSettings()
    remote_images = RemoteImages(settings.artifacts, settings.image_cache)
    image_sources = dict(remote_images.sources)
    for driver in drivers:
        image_sources |= driver.image_sources
    store = ArtifactStore(settings.image_cache, settings.artifacts, image_sources)
    api, lease_api = connect(kubeconfig), connect(kubeconfig)
    identity = identity or f"{socket.gethostname()}-{os.getpid()}"
    election = Election(lease_api, CONTROLLERS_ACCOUNT, NAMESPACE, identity)

    async def run_as_leader(term: int) -> None:
        manager = ControllerManager(api, drivers=drivers, fetch_image=store.fetch)
        store.in_use = lambda: [
            device.status.program.image
            for device in manager.view.accelerators.all()
            if device.status.program is not None
        ]
        await manager.run(term)

    election_task = asyncio.ensure_future(election.run(run_as_leader))
    stop_task = asyncio.ensure_future(stop.wait())
    try:
        finished_tasks, _ = await asyncio.wait({election_task, stop_task}, return_when=asyncio.FIRST_COMPLETED)
        if election_task in finished_tasks:
            election_task.result()
    finally:
        await cancel_all(election_task, stop_task)
        await remote_images.close()
        await api.close()
        await lease_api.close()
