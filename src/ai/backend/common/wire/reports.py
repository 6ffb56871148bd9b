"""Messages of agents to their manager: heartbeats, observations and statistics."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ai.backend.common.states import Enforcement, KernelEventReason, KernelStatus
from ai.backend.common.wire.base import Wire


class SlotReport(Wire, frozen=True, kw_only=True):
    """A slot that the agent offers: display data and its total over all healthy devices."""

    slot_name: str
    slot_type: str
    amount: str
    display: dict[str, Any] = {}


class PluginReport(Wire, frozen=True, kw_only=True):
    """The state of a plugin; ``alloc_map`` is the :class:`~ai.backend.common.devices.AllocMapSpec` or None,
    ``variant_namespaces`` are :class:`~ai.backend.common.devices.VariantNamespace` as builtins.
    """

    name: str
    version: str
    healthy: bool = True
    reason: str | None = None
    info: dict[str, str] = {}
    alloc_map: dict[str, Any] | None = None
    variant_namespaces: list[dict[str, Any]] = []


class ImageReport(Wire, frozen=True, kw_only=True):
    """An image that a session on this agent may name."""

    name: str
    architecture: str
    digest: str = ""
    size_bytes: int = 0
    labels: dict[str, str] = {}
    aliases: list[str] = []


class RuntimeClassReport(Wire, frozen=True, kw_only=True):
    """A runtime class that a session on this agent may name (spec 03-19, 10.3).

    ``overhead`` are slots that each of its kernels takes beyond its own. Of accelerators a kernel gets at most
    ``max_devices`` (None: any number), and only whole ones if ``whole_devices``.
    """

    name: str
    kind: Literal["container", "vm"] = "container"
    overhead: dict[str, str] = {}
    whole_devices: bool = False
    max_devices: int | None = None


class OverlayReport(Wire, frozen=True, kw_only=True):
    """How an agent takes part in networks over several agents: its IPv4 address and UDP ports for that, one for what is
    encrypted, and the largest packet between agents. ``why_not`` says why it takes no part, ``why_plain`` why not in
    encrypted ones; empty where it does.
    """

    address: str = ""
    port: int = 4789
    encrypted_port: int = 4790
    mtu: int = 1500
    why_not: str = ""
    why_plain: str = ""


class AgentReport(Wire, frozen=True, kw_only=True):
    """What a heartbeat carries.

    ``generation`` grows whenever devices or their health change. ``devices`` are
    :class:`~ai.backend.common.devices.ComputeDevice` as builtins. ``kernels`` lists ``(kernel id, attempt, status)`` of
    everything that the agent holds. ``enforcement`` maps a limit or isolation to what the runtime really does about it.
    ``location`` are the places that it is in, the widest first. It takes ``kernel_limit`` kernels at once at most.
    ``number`` counts the reports of one epoch from 1: the manager ignores one that is not newer than the last; 0 is
    never ignored.
    """

    agent_id: str
    epoch: int
    number: int = 0
    version: str
    architecture: str
    resource_group: str
    region: str = "local"
    addr: str = ""
    runtime: str = ""
    tier: str = ""
    enforcement: dict[str, Enforcement] = {}
    generation: int = 0
    slots: list[SlotReport] = []
    devices: list[dict[str, Any]] = []
    plugins: list[PluginReport] = []
    images: list[ImageReport] = []
    kernels: list[KernelPresence] = []
    runtime_classes: list[RuntimeClassReport] = []
    location: list[str] = []
    kernel_limit: int | None = None
    overlay: OverlayReport | None = None


class KernelPresence(Wire, frozen=True, kw_only=True):
    kernel_id: str
    attempt: int
    status: KernelStatus


class UnhealthyDevice(Wire, frozen=True, kw_only=True):
    """A failed device, by its plugin and its id; ``reason`` is for people."""

    device_name: str
    device_id: str
    reason: str = ""


HookState = Literal["retrying", "done", "given-up", "overrun"]


class HookTrouble(Wire, frozen=True, kw_only=True):
    """What a plugin's hook did not do in its time.

    ``state``: ``retrying`` in the background, ``done`` at last, ``given-up``, or ``overrun`` where the termination went
    on without it. ``since`` is the first failure, ``message`` the last one's.
    """

    plugin: str
    method: str
    state: HookState
    message: str
    since: float


class KernelObservation(Wire, frozen=True, kw_only=True):
    """A fact about a kernel, reported until acknowledged; ``seq`` orders one agent's observations within an epoch.

    ``unhealthy_devices`` are all those of the kernel's devices that have failed by now; None: nothing is said of them.
    ``retry_after_s`` comes with PENDING. ``hook_troubles`` are news about hooks; earlier ones stand.
    ``log_tail`` comes with a final status: the newest output of the workload (at most 256 KiB), kept by the manager.
    """

    kernel_id: str
    attempt: int
    status: KernelStatus
    reason: KernelEventReason
    at: float
    seq: int
    message: str | None = None
    exit_code: int | None = None
    workload_id: str | None = None
    devices: dict[str, dict[str, str]] | None = None
    attached_devices: dict[str, list[dict[str, Any]]] | None = None
    unhealthy_devices: list[UnhealthyDevice] | None = None
    service_ports: list[dict[str, Any]] | None = None
    last_stat: dict[str, Any] | None = None
    retry_after_s: float | None = None
    hook_troubles: list[HookTrouble] = []
    log_tail: bytes | None = None


class ObservationReport(Wire, frozen=True, kw_only=True):
    """Observations of one agent in the order of their ``seq``, within an epoch of that agent."""

    agent_id: str
    epoch: int
    observations: list[KernelObservation]


class MetricSample(Wire, frozen=True, kw_only=True):
    labels: dict[str, str]
    value: float


class MetricFamily(Wire, frozen=True, kw_only=True):
    """Samples of one name for Prometheus. ``kind``: ``gauge``, ``counter`` (its name ends in _total) or ``unknown``."""

    name: str
    kind: str
    help: str
    samples: list[MetricSample]


class StatReport(Wire, frozen=True, kw_only=True):
    """Live statistics: ``kernels`` maps kernel id to metric name to the metric dict of peer facts 3.6, in msgpack: of
    many kernels hardly any is read before the next report. See :meth:`of_kernel`.

    ``families`` are those for Prometheus, without the label that names the agent.
    """

    agent_id: str
    at: float
    node: dict[str, Any] = {}
    devices: dict[str, Any] = {}
    kernels: dict[str, msgspec.Raw] = {}
    families: list[MetricFamily] = []

    def of_kernel(self, kernel_id: str) -> dict[str, Any] | None:
        """Raises msgspec.MsgspecError: it is no map."""
        raw = self.kernels.get(kernel_id)
        return None if raw is None else msgspec.msgpack.decode(raw, type=dict[str, Any])


class HeartbeatReply(Wire, frozen=True, kw_only=True):
    """``unknown_kernels``: held by the agent, but the manager has no live row for them; the agent destroys them.

    ``interval_s``: when to send the next one. Reports are always whole, so that a manager that knows nothing needs none
    besides.
    """

    interval_s: float = 3.0
    unknown_kernels: list[KernelPresence] = []
