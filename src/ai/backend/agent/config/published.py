"""Tables and keys of the published ``agent.toml`` (spec 03-02), translated to the agent's settings."""

from __future__ import annotations

from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ai.backend.infra.settings import Settings
from ai.backend.infra.settings.published import accept_only, fixed_field, unused_field
from ai.backend.infra.settings.tables import Address, DebugSettings
from ai.backend.plugin.settings import Size

Port = Annotated[int, Field(ge=1, le=65_535)]
_NO_EVENT_LOGS = "set the level of a logger in logging.pkg-ns instead, as \"ai.backend.agent.link\" = 'DEBUG'"


class PublishedNode(Settings):
    """Published keys of the table ``[agent]`` that stand for another key here, or have no effect."""

    mode: Literal["docker", "process"] | None = Field(None, description="As `runtime`, which it wins over.")
    pid_file: Path | None = Field(None, description="Where the process id is written.")
    rpc_listen_addr: Address | None = Field(
        None,
        description="Its host is `underlay.address` where that is unset, if it is an IPv4 address of the node. Nothing"
        " listens there: agents connect to managers.",
    )
    event_loop: Literal["asyncio", "uvloop"] = unused_field("asyncio", "agents run on uvloop where it is installed")

    @property
    def reachable_address(self) -> str:
        """The IPv4 address at which other nodes reach this one, as published; empty if there is none."""
        try:
            address = IPv4Address(self.rpc_listen_addr.host if self.rpc_listen_addr is not None else "")
        except AddressValueError:
            return ""
        return "" if address.is_unspecified or address.is_loopback else str(address)


class ContainerSettings(Settings):
    """The table ``[container]``: keys of the published agent.toml, each with its setting here or without effect."""

    kernel_uid: int | None = Field(None, ge=1, le=2**31 - 2, description="As `runtime.kernel-uid`, which wins over it.")
    kernel_gid: int | None = Field(None, ge=1, le=2**31 - 2, description="As `runtime.kernel-gid`, which wins over it.")
    stats_type: Literal["docker", "cgroup"] | None = Field(
        None, description="As `runtime.stats-type` of the Docker runtime, which wins over it; else only `cgroup`."
    )
    scratch_root: Path | None = Field(None, description="As `runtime.homes-directory`, which wins over it.")
    scratch_type: Annotated[
        Literal["hostdir", "hostfile", "memory"],
        accept_only("hostdir", because="homes are directories of the node: hostdir; limit them by runtime.home-bytes"),
    ] = fixed_field("hostdir", "homes are always directories of the node")
    scratch_size: Size | None = unused_field(None, "homes of the type hostdir have no size; see runtime.home-bytes")
    port_range: tuple[Port, Port] = Field(
        (30_000, 31_000), description="The ports of the node that services get where `gateway.direct` is set."
    )
    bind_host: str = Field("", description="The address of the node at which services are reached; see `[gateway]`.")
    sandbox_type: Annotated[
        Literal["docker", "jail"],
        accept_only("docker", because="there is no jail: see runtime.seccomp for system calls"),
    ] = fixed_field("docker", "the runtime confines sessions")
    jail_args: Annotated[
        list[str], accept_only([], because="there is no jail: see runtime.seccomp for system calls")
    ] = fixed_field(list, "there is no jail")

    @model_validator(mode="after")
    def _check_port_range(self) -> Self:
        if self.port_range[0] > self.port_range[1]:
            raise ValueError("container.port-range: the first port is the lowest")
        return self

    def of_runtime(self, runtime: str) -> dict[str, Any]:
        """Returns the settings of a runtime that this table stands for. Raises ValueError for a wrong stats-type."""
        if self.stats_type == "docker" and runtime != "docker":
            raise ValueError("container.stats-type: statistics of this runtime come from control groups: cgroup")
        values = {
            "kernel-uid": self.kernel_uid,
            "kernel-gid": self.kernel_gid,
            "homes-directory": self.scratch_root,
            "stats-type": self.stats_type if runtime == "docker" else None,
        }
        return {key: value for key, value in values.items() if value is not None}


NoEventLog = Annotated[bool, accept_only(False, because=_NO_EVENT_LOGS)]


class CoreDumpSettings(Settings):
    """The table ``[debug.coredump]``: published keys without effect, since sessions leave no core dumps."""

    enabled: Annotated[
        bool,
        accept_only(False, because="core dumps of sessions are not kept: run the program in a debugger there"),
    ] = fixed_field(False, "sessions leave no core dumps")
    path: Path = fixed_field(Path("./coredumps"), "sessions leave no core dumps")
    backup_count: int = fixed_field(10, "sessions leave no core dumps")
    size_limit: Size = fixed_field(64 << 20, "sessions leave no core dumps")


class AgentDebugSettings(DebugSettings):
    """The table ``[debug]`` of agents."""

    skip_container_deletion: Annotated[
        bool, accept_only(False, because="ended sessions are always removed; their logs stay with the manager")
    ] = fixed_field(False, "ended sessions are always removed")
    log_events: NoEventLog = fixed_field(False, _NO_EVENT_LOGS)
    log_kernel_config: NoEventLog = fixed_field(False, _NO_EVENT_LOGS)
    log_alloc_map: NoEventLog = fixed_field(False, _NO_EVENT_LOGS)
    log_stats: NoEventLog = fixed_field(False, _NO_EVENT_LOGS)
    log_heartbeats: NoEventLog = fixed_field(False, _NO_EVENT_LOGS)
    log_docker_events: NoEventLog = fixed_field(False, _NO_EVENT_LOGS)
    coredump: CoreDumpSettings = CoreDumpSettings()
