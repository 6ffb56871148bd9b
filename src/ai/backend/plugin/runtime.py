"""Defines the SPI of runtimes, which make a workload of a kernel on a node (process trees, Docker, Kubernetes).

Every call is idempotent by workload key ``(kernel_id, attempt)``, safe to repeat after a crash of the agent at any
instruction, and never blocks the event loop. ``create`` leaves a complete workload or nothing that ``remove`` would not
find. A runtime keeps its own durable record: ``list_workloads`` finds workloads without the agent's help.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel

from ai.backend.common.errors import CreationDenied, NotSupported
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.common.states import Enforcement
from ai.backend.common.wire.link import ByteStream
from ai.backend.plugin.accelerator import Measurement, WorkloadConfig

SPI_VERSION = 1
ENTRY_POINT_GROUP = "backendai_runtime_v1"
HOME = "/home/work"
"""Where the home of a session is in every workload."""
SERVICE_SOCKETS = ".services"
"""A folder of the home, where a unix socket named by a port listens in the place of that port."""


class WorkloadState(StrEnum):
    CREATED = "created"
    """Prepared; nothing runs."""
    RUNNING = "running"
    EXITED = "exited"
    """Ended, with its record and home still there."""
    GONE = "gone"
    """Nothing is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadKey:
    kernel_id: KernelId
    attempt: int

    def __str__(self) -> str:
        return f"{self.kernel_id}.{self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkView:
    """Describes the private network of one session.

    Only the session's kernels reach the network. ``network_id`` is the runtime's name of it; ``addresses`` maps host
    names to IPv4 addresses, known before any workload is made.
    """

    session_id: SessionId
    network_id: str
    addresses: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """Describes a session's part of a network over several nodes (VXLAN). The manager resolves it once for all nodes.

    Attributes:
        vni: the network's number, 1 to 16,777,215.
        subnet: of all addresses in it, as ``10.214.0.0/28``; ``gateway`` is one of them for this node's own use.
        addresses: the IPv4 address of each host name, on whichever node it is.
        mtu: the largest packet that may be sent in it.
        local: this node's IPv4 address and UDP port, at which the peers reach it.
        peers: those of the host names on other nodes.
    """

    vni: int
    subnet: str
    addresses: Mapping[str, str]
    gateway: str
    mtu: int
    local: tuple[str, int]
    peers: Mapping[str, tuple[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """Describes the workload that a runtime creates.

    Attributes:
        environ: complete environment of the session's programs; no secret of the platform is ever in it.
        config: the merged configs of all plugins, with cpu, memory, cpuset and devices.
        files: small files to place before the start, by absolute path in the workload (resource.txt, ...).
        private_files: those of them that the session's user alone may read.
        secret_names: those of ``environ`` whose values no runtime stores longer than a start takes.
        home_bytes, pids: limits; None is the runtime's default.
        keep_home: reuse the home of an earlier attempt (restart in place).
        network: from ``create_network``; the workload has the address of its ``hostname`` there. None: the runtime's
            own.
        runtime_class: a name of ``RuntimeInfo.runtime_classes``; empty: what the runtime does by itself.
        program: the shell command of a batch session, which the first run will execute. A runtime may make it the
            workload's own (:attr:`WorkloadExit.program`) if it starts a runner before the first message that needs one.
        image_request: the image with the login to its registry, for a runtime whose nodes pull the image within
            ``create``; None where nothing is to be pulled.
    """

    key: WorkloadKey
    session_id: SessionId
    image: str
    environ: Mapping[str, str] = field(default_factory=dict)
    config: WorkloadConfig = field(default_factory=WorkloadConfig)
    files: Mapping[str, bytes] = field(default_factory=dict)
    private_files: frozenset[str] = frozenset()
    hostname: str = "main1"
    shmem_bytes: int = 0
    home_bytes: int | None = None
    pids: int | None = None
    keep_home: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    network: NetworkView | None = None
    runtime_class: str = ""
    program: str = ""
    secret_names: frozenset[str] = frozenset()
    image_request: ImageRequest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadExit:
    """Describes the end of a workload: its exit code or signal, and the reason.

    ``signal`` excludes ``code``; ``oom`` if the memory limit ended it; ``program`` if it is the end of
    :attr:`WorkloadSpec.program`, by itself or by ``cancel``.
    """

    code: int | None = None
    signal: int | None = None
    oom: bool = False
    reason: str = ""
    program: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadView:
    """Describes the present state of a workload.

    ``workload_id`` is the container id or the leader's process id as text.
    """

    key: WorkloadKey
    session_id: SessionId
    state: WorkloadState
    workload_id: str = ""
    exit: WorkloadExit | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadExited:
    """The event that a workload has exited. An event may be lost or repeated; ``inspect`` reports the exit too."""

    key: WorkloadKey
    exit: WorkloadExit


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeImage:
    """Describes an image that this runtime can start now. ``labels`` use the spec's image labels (03-05)."""

    name: str
    architecture: str
    digest: str = ""
    size_bytes: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest:
    """Requests an image of a registry.

    Attributes:
        name: with its registry and tag.
        digest, config_digest: of the requested image; empty where any will do.
        when: ``tag`` fetches it where it is missing, ``digest`` also where it is another one; empty never does.
        username, password: for the registry; they are shown to nothing but the engine.
    """

    name: str
    digest: str = ""
    config_digest: str = ""
    when: Literal["", "tag", "digest"] = "tag"
    username: str = ""
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """Requests an archive or an image of a workload's root file system.

    The archive is ``folder/filename`` where the node keeps archives; with ``push``, an image is pushed to its
    registry instead. ``labels`` are added to those of the workload's own image.
    """

    folder: str
    filename: str
    labels: Mapping[str, str] = field(default_factory=dict)
    push: ImageRequest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedImage:
    """Describes a committed image. ``place`` is the archive's path on the node, or the name of the pushed image.

    ``digest`` is that of the pushed image's manifest, empty for an archive; both have a ``config_digest``.
    """

    place: str
    size_bytes: int
    digest: str = ""
    config_digest: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


TellProgress = Callable[[int, int], None]
"""Bytes that are done, and how many there are as far as is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeInfo:
    """Describes a runtime on this node.

    ``tier`` names the documented set of guarantees; ``enforcement`` maps each limit or isolation to what is really
    done. Of the capabilities ``session-networks`` promises networks of sessions, ``multi-node-networks`` such that
    reach over several nodes; ``no_session_networks`` and ``no_multi_node_networks`` say why there are none,
    ``no_private_ports`` why workloads share the host's network (empty: they do not, or nothing can be done).
    ``runtime_classes`` are what can be asked for by name (OCI runtimes of an engine, gVisor); ``class_overheads`` is
    the memory in bytes that a workload of such a class takes beyond its own, and ``class_handlers`` the program that
    starts it, where the runtime knows them. ``cdi_directories`` are where the runtime looks CDI names up, lowest
    priority first; the agent writes the specifications of its plugins into the last one. Empty without CDI.
    ``pulls_in_create``: the node pulls images within ``create``, and ``lacks_image`` is never True.
    ``create_timeout_s``: how long ``create`` takes at most by the runtime's own deadlines; None where a setting of the
    agent's limits it. ``mounts_sub_paths``: folders are mounted as parts of volumes.
    """

    name: str
    version: str
    workload_type: Literal["container", "process_tree"]
    tier: str
    enforcement: Mapping[str, Enforcement] = field(default_factory=dict)
    capabilities: frozenset[str] = frozenset()
    no_session_networks: str = "this runtime has no networks of sessions"
    no_multi_node_networks: str = "this runtime has no networks over several nodes"
    no_private_ports: str = ""
    runtime_classes: tuple[str, ...] = ()
    class_overheads: Mapping[str, int] = field(default_factory=dict)
    class_handlers: Mapping[str, str] = field(default_factory=dict)
    cdi_directories: tuple[str, ...] = ()
    pulls_in_create: bool = False
    create_timeout_s: float | None = None
    mounts_sub_paths: bool = False


class PortExposure(StrEnum):
    """Names the programs that can connect to ports of a workload at 127.0.0.1: its own only, or all of the host."""

    PRIVATE = "private"
    """The workload itself, and the tunnels of this platform."""
    HOST = "host"
    """Every user and every other such workload of this host: the workload shares the host's network."""


class RunnerChannel(ABC):
    """Carries an authenticated stream of runner frames (docs/reference/runner-protocol).

    Frames are JSON objects. ``recv`` yields them in order with their ``seq``; an item of type ``exited`` is the last.
    One channel at a time drives a workload: opening with a newer epoch ends the older one.
    """

    @abstractmethod
    async def send(self, frame: Mapping[str, Any]) -> None:
        """Sends a frame to the runner. Raises Unavailable if the channel is closed."""

    @abstractmethod
    def recv(self) -> AsyncIterator[dict[str, Any]]: ...

    def listen(self, hear: Callable[[dict[str, Any] | None], None]) -> bool:
        """Calls ``hear`` with each frame from now on, and with None at the end.

        Replaces ``recv``, without a waiting task. Returns False where the runtime does not offer it; nothing is called
        then.
        """
        return False

    @abstractmethod
    async def ack(self, seq: int) -> None:
        """Acknowledges the runner's frames up to ``seq``. The runner may then discard them."""

    @abstractmethod
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessView:
    """Describes a process of a workload: its pids, command and measurements.

    ``pid`` is the host's; with ``started``, of any origin, it is never another process's. ``shown_pid`` is its number
    as the workload itself sees it.
    """

    pid: int
    started: int
    shown_pid: int
    command: str
    measurements: Sequence[Measurement]


class AbstractRuntime(ABC):
    """The base of runtimes, which make and supervise workloads on a node.

    The contract is in this module's docstring. A plugin is a class under the entry point group
    :data:`ENTRY_POINT_GROUP`, made of its settings (the agent's table ``[runtime]``, as ``settings_model``) and the
    directory of its durable records; ``agent.runtime`` names it.
    """

    spi_version: ClassVar[int] = SPI_VERSION
    name: ClassVar[str]
    settings_model: ClassVar[type[BaseModel] | None] = None

    @abstractmethod
    async def setup(self) -> None:
        """Probes the node's abilities by trying them, and removes what a crash left half made.

        Called once, before any other call.
        """

    @abstractmethod
    async def shutdown(self) -> None:
        """Releases the runtime's resources on the node without touching running workloads."""

    @abstractmethod
    def info(self) -> RuntimeInfo: ...

    @abstractmethod
    async def list_images(self) -> Sequence[RuntimeImage]: ...

    @abstractmethod
    async def create(self, spec: WorkloadSpec) -> WorkloadView:
        """Prepares and starts a workload. Returns once its runner process exists; readiness comes over the channel.
        Raises CreationDenied if it can never work here; where one item of ``spec.config`` is the reason, ``data`` names
        its ``field`` and ``key`` (target of a mount, CDI name or target of a device, name of a call). Raises
        WorkloadError if it failed; nothing is left behind."""

    async def create_network(
        self, session_id: SessionId, hosts: Sequence[str], overlay: Overlay | None = None
    ) -> NetworkView:
        """Creates the private network of a session on this node, before the session's first workload, and returns it.

        Idempotent. With ``overlay`` it reaches kernels on other nodes as well, at the given addresses; one of the
        session with another ``overlay``, of an earlier placement, is replaced. Raises CreationDenied with the reason if
        there can be none here, WorkloadError or Unavailable if it failed; ``remove_network`` finds what is half made.
        """
        info = self.info()
        raise CreationDenied(info.no_session_networks if overlay is None else info.no_multi_node_networks)

    async def remove_network(self, session_id: SessionId) -> None:
        """Removes the network of a session, even if something is still connected. Safe when there is none."""

    async def list_networks(self) -> Sequence[SessionId]:
        """Lists the sessions that have a network of this runtime on the node, or a part of such a network."""
        return ()

    async def broken_networks(self) -> Sequence[SessionId]:
        """Lists the sessions whose network was removed while their workloads were running, and cannot be repaired."""
        return ()

    @abstractmethod
    async def stop(self, key: WorkloadKey, *, grace_s: float) -> WorkloadExit | None:
        """Ends the workload by a polite signal, and after the grace by SIGKILL of the whole tree.

        Returns None if it is gone.
        """

    @abstractmethod
    async def remove(self, key: WorkloadKey, *, keep_home: bool = False) -> None:
        """Removes every trace of a workload (processes, cgroups, directories, networks). Safe when there is none."""

    @abstractmethod
    async def inspect(self, key: WorkloadKey) -> WorkloadView | None: ...

    @abstractmethod
    async def list_workloads(self) -> Sequence[WorkloadView]: ...

    @abstractmethod
    async def open_channel(self, key: WorkloadKey, *, epoch: int, last_seq: int = 0) -> RunnerChannel:
        """Connects to the runner and takes over from any older epoch.

        Raises Unavailable if there is no live runner, Conflict if a newer epoch drives it.
        """

    async def open_port(self, key: WorkloadKey, port: int) -> ByteStream:
        """Connects to a port on 127.0.0.1 inside the workload; with the capability ``ports``.

        Where the workload shares the host's network, to its unix socket in :data:`SERVICE_SOCKETS`, or else to a port
        on which a process of its own listens. Raises Unavailable if nothing listens there or there is no live workload;
        NotSupported.
        """
        raise NotSupported(f"the runtime {self.name} has no tunnels")

    async def port_exposure(self, key: WorkloadKey) -> PortExposure:
        """Returns who can reach a workload's ports.

        Exposed ones need the operator's consent. Raises as ``open_port``.
        """
        raise NotSupported(f"the runtime {self.name} has no tunnels")

    @abstractmethod
    def events(self) -> AsyncIterator[WorkloadExited]: ...

    @abstractmethod
    async def read_logs(self, key: WorkloadKey, *, max_bytes: int) -> bytes: ...

    @abstractmethod
    async def measure(self, keys: Sequence[WorkloadKey]) -> Mapping[WorkloadKey, Sequence[Measurement]]:
        """Returns, by workload, the measurements that the runtime itself takes.

        They are cpu_used, cpu_util, mem, io_read, io_write, net_rx, net_tx, io_scratch_size, pids. Unknown ones are
        left out, as the network of a workload that shares the host's.
        """

    @abstractmethod
    async def pids(self, key: WorkloadKey) -> tuple[int, ...]: ...

    async def lacks_image(self, request: ImageRequest) -> bool:
        """Returns True if :meth:`pull_image` must be called before a workload is made of the image."""
        return False

    async def pull_image(self, request: ImageRequest, tell: TellProgress) -> None:
        """Fetches an image.

        Calls for the same image share one transfer, which ends when nobody waits for it. Raises ImageNotFound,
        RegistryRefused (other credentials), RegistryUnavailable, StorageFull, NotSupported.
        """
        raise NotSupported(f"the runtime {self.name} fetches no images from registries")

    async def load_image(self, name: str, archive: Path) -> None:
        """Makes an image from an archive or directory of this node.

        An image of the same name is replaced. Raises InvalidInput (it is none), LimitExceeded, StorageFull,
        WorkloadError, NotSupported; nothing is left behind.
        """
        raise NotSupported(f"the runtime {self.name} makes no images of archives")

    async def remove_image(self, name: str) -> None:
        """Removes an image. Safe if there is none. Raises Conflict if a workload runs on it; NotSupported."""
        raise NotSupported(f"the runtime {self.name} removes no images on request")

    async def commit(self, key: WorkloadKey, request: CommitRequest, tell: TellProgress) -> CommittedImage:
        """Stores the workload's root file system, without its home, mounts, environment and secrets.

        Raises NotFound, StorageFull, RegistryRefused, RegistryUnavailable, WorkloadError, NotSupported; nothing
        is left behind.
        """
        raise NotSupported(f"the runtime {self.name} makes no images of its sessions: they have no layers of their own")

    async def measure_processes(self, key: WorkloadKey) -> Sequence[ProcessView]:
        """Returns the workload's processes.

        Returns no processes if the runtime cannot see them. Keys: cpu_used, mem, io_read, io_write.
        """
        return ()
