"""Defines messages of agents to their manager: heartbeats, observations and statistics."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ai.backend.common.states import Enforcement, KernelEventReason, KernelStatus
from ai.backend.common.wire import Wire


class SlotReport(Wire, frozen=True, kw_only=True):
    """A slot that the agent offers: display data and its total over all healthy devices."""

    slot_name: str
    slot_type: str
    amount: str
    display: dict[str, Any] = {}


class PluginReport(Wire, frozen=True, kw_only=True):
    """Describes the state of an accelerator plugin.

    ``alloc_map`` is its :class:`~ai.backend.common.devices.AllocMapSpec` or None, ``variant_namespaces`` are
    :class:`~ai.backend.common.devices.VariantNamespace`; both as builtins. ``options_schema`` is the JSON Schema of the
    options that sessions may give to it; None: none. ``diagnosable``: it shows its devices to sessions that do not hold
    them; None while it is not started, and from agents that do not say.
    """

    name: str
    version: str
    healthy: bool = True
    reason: str | None = None
    info: dict[str, str] = {}
    alloc_map: dict[str, Any] | None = None
    variant_namespaces: list[dict[str, Any]] = []
    options_schema: dict[str, Any] | None = None
    diagnosable: bool | None = None


class ImageReport(Wire, frozen=True, kw_only=True):
    """Describes an image that sessions on this agent can use."""

    name: str
    architecture: str
    digest: str = ""
    size_bytes: int = 0
    labels: dict[str, str] = {}
    aliases: list[str] = []


class RuntimeClassReport(Wire, frozen=True, kw_only=True):
    """A runtime class that sessions on this agent can use (spec 03-19, 10.3).

    ``overhead`` are slots that each kernel takes in addition to its own. A kernel gets at most ``max_devices``
    accelerators (None: any number), and only whole ones if ``whole_devices``. ``folders``: it can mount virtual
    folders; ``host_network``: it can share the network of its node.
    """

    name: str
    kind: Literal["container", "vm"] = "container"
    overhead: dict[str, str] = {}
    whole_devices: bool = False
    max_devices: int | None = None
    folders: bool = True
    host_network: bool = True


class OverlayReport(Wire, frozen=True, kw_only=True):
    """The agent's IPv4 address, UDP ports (plain and encrypted) and largest packet for networks between agents.
    ``why_not`` is the reason if it joins none, ``why_plain`` the reason if it joins no encrypted ones."""

    address: str = ""
    port: int = 4789
    encrypted_port: int = 4790
    mtu: int = 1500
    why_not: str = ""
    why_plain: str = ""


class AgentReport(Wire, frozen=True, kw_only=True):
    """Holds the content of a heartbeat: the agent's slots, devices, plugins, images and kernels.

    ``generation`` grows whenever devices or their health change. ``devices`` are
    :class:`~ai.backend.common.devices.ComputeDevice` as builtins. ``enforcement`` maps a limit or isolation to how the
    runtime enforces it. ``location`` has the places that contain the agent, the widest first. It runs at most
    ``kernel_limit`` kernels. ``speaker`` names the process that reports for this agent among others; empty: the agent
    itself, whose silence then is the node's. ``number`` counts the reports of one epoch from 1: the manager ignores one
    that is not newer than the last; 0 is never ignored. ``observed`` is the ``seq`` of the agent's newest observation
    when it made the report; None from agents that do not say. A ``loss`` is the reason for which a node is lost as the
    speaker sees it; the manager then uses nothing else of the report.
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
    speaker: str = ""
    observed: int | None = None
    loss: str = ""

    @property
    def agent_ids(self) -> tuple[str, ...]:
        """Returns the agents to which the message belongs."""
        return (self.agent_id,)


class KernelPresence(Wire, frozen=True, kw_only=True):
    kernel_id: str
    attempt: int
    status: KernelStatus


class UnhealthyDevice(Wire, frozen=True, kw_only=True):
    """A failed device of a plugin; ``reason`` is for people."""

    device_name: str
    device_id: str
    reason: str = ""


HookState = Literal["retrying", "done", "given-up", "overrun"]


class HookTrouble(Wire, frozen=True, kw_only=True):
    """Describes a plugin's hook that failed or took too long.

    ``state``: ``retrying`` in the background, ``done`` after retries, ``given-up``, or ``overrun`` if the termination
    continued without it. ``since`` is the time of the first failure, ``message`` that of the last one.
    """

    plugin: str
    method: str
    state: HookState
    message: str
    since: float


class KernelObservation(Wire, frozen=True, kw_only=True):
    """Reports what an agent observed about a kernel. The agent repeats the report until it is acknowledged.

    ``seq`` orders the observations of one epoch of an agent.

    ``unhealthy_devices`` are all failed devices of the kernel; None: unchanged. ``retry_after_s`` comes with PENDING.
    ``hook_troubles`` are changes only. ``log_tail`` comes with a final status: the newest output of the workload (at
    most 256 KiB), which the manager stores. ``trace`` is the ``traceparent`` of the operation that observed it.
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
    trace: str | None = None


class LogLine(Wire, frozen=True, kw_only=True):
    """A log record of a daemon that belongs to a session; ``at`` is in seconds of the epoch."""

    at: float
    daemon: str
    level: str
    logger: str
    message: str
    request_id: str | None = None
    trace_id: str | None = None


class ObservationReport(Wire, frozen=True, kw_only=True):
    """Observations of one epoch of an agent in the order of their ``seq``."""

    agent_id: str
    epoch: int
    observations: list[KernelObservation]

    @property
    def agent_ids(self) -> tuple[str, ...]:
        """Returns the agents to which the message belongs."""
        return (self.agent_id,)


class MetricSample(Wire, frozen=True, kw_only=True):
    labels: dict[str, str]
    value: float


class MetricFamily(Wire, frozen=True, kw_only=True):
    """Holds the samples of one Prometheus metric.

    ``kind``: ``gauge``, ``counter`` (its name ends in _total) or ``unknown``.
    """

    name: str
    kind: str
    help: str
    samples: list[MetricSample]


class StatReport(Wire, frozen=True, kw_only=True):
    """Reports the live statistics of an agent's kernels and devices.

    ``kernels`` has the metric dicts of peer facts 3.6 by kernel id, in msgpack: few are ever read.

    ``families`` are for Prometheus, without the label of the agent.
    """

    agent_id: str
    at: float
    node: dict[str, Any] = {}
    devices: dict[str, Any] = {}
    kernels: dict[str, msgspec.Raw] = {}
    families: list[MetricFamily] = []

    @property
    def agent_ids(self) -> tuple[str, ...]:
        """Returns the agents to which the message belongs."""
        return (self.agent_id,)

    def of_kernel(self, kernel_id: str) -> dict[str, Any] | None:
        """Returns the metrics of a kernel.

        Returns None if the report has none. Raises msgspec.MsgspecError if they are no map.
        """
        raw = self.kernels.get(kernel_id)
        return None if raw is None else msgspec.msgpack.decode(raw, type=dict[str, Any])


class HeartbeatReply(Wire, frozen=True, kw_only=True):
    """Replies to a heartbeat: when to send the next one, and which kernels to destroy or to report again.

    ``interval_s`` are the seconds until the next heartbeat. The agent destroys the ``unknown_kernels``, which have no
    live row in the manager.

    The manager has no record of what the agent observed last of the ``unobserved_kernels``; the agent reports their
    state again.
    """

    interval_s: float = 3.0
    unknown_kernels: list[KernelPresence] = []
    unobserved_kernels: list[KernelPresence] = []


class KeptDevicesOf(Wire, frozen=True, kw_only=True):
    """Requests the devices that device claims keep on an agent."""

    agent_id: str

    @property
    def agent_ids(self) -> tuple[str, ...]:
        """Returns the agents to which the message belongs."""
        return (self.agent_id,)


class KeptDevices(Wire, frozen=True, kw_only=True):
    """The devices that claims keep on an agent, in use or idle: claim -> slot -> device -> quantity."""

    devices: dict[str, dict[str, dict[str, str]]] = {}


class Beat(Wire, frozen=True, kw_only=True):
    """Stands for a heartbeat whose content has not changed, without repeating the content.

    It replaces the heartbeat of this epoch and number. The content equals that of the heartbeat ``unchanged_since``.
    """

    agent_id: str
    epoch: int
    number: int
    unchanged_since: int


class BeatReport(Wire, frozen=True, kw_only=True):
    """Reports the heartbeats of agents that share a connection and whose content has not changed."""

    beats: list[Beat]

    @property
    def agent_ids(self) -> tuple[str, ...]:
        """Returns the agents to which the message belongs."""
        return tuple(beat.agent_id for beat in self.beats)


class BeatReply(Wire, frozen=True, kw_only=True):
    """Names the agents whose last heartbeat the manager does not have (``stale``).

    These agents must send whole heartbeats. ``unknown_kernels`` as in :class:`HeartbeatReply`, by agent.
    """

    interval_s: float = 3.0
    stale: list[str] = []
    unknown_kernels: dict[str, list[KernelPresence]] = {}
