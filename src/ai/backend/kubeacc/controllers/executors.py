"""Finds the executor of an operation on a device, and how long an executor has been silent."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from ai.backend.kubeacc.controllers.cluster_view import ClusterView
from ai.backend.kubeacc.crd.objects import Accelerator, AcceleratorOperation
from ai.backend.node.kube_api.objects import Node

NODE, DRIVER = "node/", "driver/"


class Executors:
    """Finds the executors of operations.

    ``drivers`` are the names of the IaaS drivers that run inside of the controllers.
    """

    def __init__(
        self, view: ClusterView, drivers: Collection[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._view, self._drivers, self._clock = view, frozenset(drivers), clock
        self._silent_since: dict[str, float] = {}

    def executor_of(self, operation: AcceleratorOperation, device: Accelerator) -> str:
        """Returns the executor of an operation. Returns an empty text if no executor can act on the device."""
        if device.spec.driver in self._drivers:
            return f"{DRIVER}{device.spec.driver}"
        attach = operation.spec.attach
        node = attach.node_name if attach is not None else device.spec.node_name
        return f"{NODE}{node}" if node else ""

    def silent_s(self, executor: str) -> float:
        """Returns the seconds for which an executor's node was not ready or did not exist."""
        node = self._view.nodes.get(executor.removeprefix(NODE)) if executor.startswith(NODE) else None
        if not executor.startswith(NODE) or (node is not None and is_ready(node)):
            self._silent_since.pop(executor, None)
            return 0.0
        return self._clock() - self._silent_since.setdefault(executor, self._clock())


def is_ready(node: Node) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions)
