"""Declares, starts, stops and lists the services of kernels, and connects to their ports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ai.backend.agent.channel.channel import KernelChannel
from ai.backend.agent.config.settings import RunSettings, ServiceSettings
from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.common.errors import BackendError, CreationDenied, Forbidden, InvalidInput, NotFound, RunError
from ai.backend.common.service_ports import INTRINSIC_SERVICES, SSHD, ServicePort, kernel_services
from ai.backend.common.wire.agent import KernelSpec
from ai.backend.common.wire.execution import ServiceState, StartService
from ai.backend.common.wire.link import ByteStream
from ai.backend.plugin.accelerator import Mount, WorkloadConfig
from ai.backend.plugin.runtime import SERVICE_SOCKETS, AbstractRuntime, PortExposure

MAX_PORT = 65_535
KIT_MOUNT_TARGET = "/opt/backend.ai/kit"
"""Where every workload sees the kits."""
START_TIMEOUT_S = 35.0
"""As the published platform waits (peer facts 3.4)."""
_STOP_TIMEOUT_S = 12.0
_INTRINSIC_NAMES = frozenset(service.name for service in INTRINSIC_SERVICES)


class Kits(Protocol):
    """Makes kits in ``directory``, which every workload mounts unless ``is_built_in`` is True.

    A kit is built in if the runtime puts it into each workload. ``services`` are the names that a kit can serve.
    """

    def open(self) -> None:
        """Creates the directory. It must exist before a workload mounts it."""

    @property
    def directory(self) -> Path: ...

    @property
    def services(self) -> frozenset[str]: ...

    @property
    def is_built_in(self) -> bool: ...

    async def ensure(self) -> str:
        """Returns the name of the kit in the directory, which is made if need be. Raises Unavailable."""
        ...

    async def clean(self) -> None:
        """Removes unused kits of earlier versions of the agent. Raises Unavailable."""


def shared_network_message(reason: str) -> str:
    """Returns an error message for users: others of the host would reach the service, and how to prevent that.

    The session shares the host's network; ``reason`` says why.
    """
    reason = reason or "the settings of the runtime want it"
    return (
        "sessions on this node share the host's network, where every user of the host would reach this service;"
        f" mend this there and start the agent and the session again: {reason};"
        " or consent with `shared-network = true` below [services] in agent.toml (`backend.ai up --agent-config FILE`)"
    )


class PortForwarder:
    """Opens connections to ports of kernels, if the operator consents."""

    def __init__(self, runtime: AbstractRuntime, settings: ServiceSettings) -> None:
        self._runtime = runtime
        self._settings = settings

    async def exposure_of(self, kernel: Kernel, service: str) -> PortExposure:
        """Returns who can reach a kernel's ports, before a service is opened. Requires consent for services of users.

        The platform's own services need no consent, since they listen on unix sockets where others of the host would
        reach their ports. Raises as ``require_consent``.
        """
        if service in _INTRINSIC_NAMES:
            return await self._runtime.port_exposure(kernel.key)
        return await self.require_consent(kernel)

    async def require_consent(self, kernel: Kernel) -> PortExposure:
        """Returns who can reach a kernel's ports. Refuses ports that other users reach without the operator's consent.

        Raises:
            Forbidden: others reach them too, without the operator's consent; ``data`` names the exposure.
            Unavailable: there is no live workload. NotSupported: the runtime has no tunnels.
        """
        exposure = await self._runtime.port_exposure(kernel.key)
        if exposure is PortExposure.HOST and not self._settings.shared_network:
            message = shared_network_message(self._runtime.info().no_private_ports)
            raise Forbidden(message, data={"exposure": exposure.value})
        return exposure

    async def check(self, kernel: Kernel, port: int) -> None:
        """Checks that a user may open this port of a kernel.

        Raises InvalidInput if there is no such port, or as ``require_consent``.
        """
        if not 1 <= port <= MAX_PORT:
            raise InvalidInput(f"{port} is no port", data={"port": port})
        if port in {port for service in INTRINSIC_SERVICES for port in service.ports}:
            await self._runtime.port_exposure(kernel.key)
        else:
            await self.require_consent(kernel)

    async def open(self, kernel: Kernel, port: int) -> ByteStream:
        """Connects to a kernel's port. Raises as ``check`` and ``runtime.open_port``."""
        await self.check(kernel, port)
        return await self._runtime.open_port(kernel.key, port)


class ServiceManager:
    """Declares, starts, stops and lists the services of kernels."""

    def __init__(self, runtime: AbstractRuntime, ports: PortForwarder, kits: Kits, settings: RunSettings) -> None:
        self._runtime = runtime
        self._ports = ports
        self._kits = kits
        self._settings = settings
        self._labels: dict[str, Mapping[str, str]] = {}

    @property
    def has_sshd(self) -> bool:
        return self._supports_ports and SSHD in self._kits.services

    @property
    def _supports_ports(self) -> bool:
        return "ports" in self._runtime.info().capabilities

    def mounts(self) -> WorkloadConfig:
        """Returns a config that mounts the kits. The config is empty if there is nothing to mount or the runtime cannot
        mount.
        """
        has_mount = self._kits.services and self._supports_ports and not self._kits.is_built_in
        if not has_mount or "mounts" not in self._runtime.info().capabilities:
            return WorkloadConfig()
        return WorkloadConfig(
            mounts=(Mount(source=str(self._kits.directory), target=KIT_MOUNT_TARGET, read_only=True),)
        )

    async def declare(self, spec: KernelSpec) -> list[dict[str, Any]]:
        """Returns the services of a kernel in wire form. Raises CreationDenied if a preopened port is a service's."""
        if not self._supports_ports:
            return []
        kit_services = self._kits.services
        intrinsic_services = [service for service in INTRINSIC_SERVICES if service.name in kit_services]
        labels = await self.labels_of(spec)
        try:
            kernel_services(labels)
        except InvalidInput:
            labels = {}  # labels that nobody has checked: they declare no usable services
        try:
            services = kernel_services(labels, spec.preopen_ports, intrinsic=intrinsic_services)
        except InvalidInput as e:
            raise CreationDenied(e.message, data=e.data) from e
        return [service.to_wire() for service in services]

    async def labels_of(self, spec: KernelSpec) -> Mapping[str, str]:
        """Returns the labels of a kernel's image, from the runtime or else from its registry."""
        if spec.image not in self._labels:
            images = await self._runtime.list_images()
            self._labels = {alias: image.labels for image in images for alias in (image.name, *image.aliases)}
        return self._labels.get(spec.image) or spec.image_labels

    def forget_images(self) -> None:
        """Drops the cached labels because the images have changed."""
        self._labels = {}

    async def start(self, kernel: Kernel, channel: KernelChannel, req: StartService) -> ServiceState:
        """Starts a service, see :meth:`~ai.backend.common.wire.link.AgentCommands.start_service`."""
        service = self._find_declared(kernel, req.name)
        if req.port is not None and req.port not in service.ports:
            raise InvalidInput(f"the service {req.name} has no port {req.port}", data={"port": req.port})
        exposure = await self._ports.exposure_of(kernel, service.name)
        labels = await self.labels_of(kernel.record.spec)
        is_intrinsic = service.name in _INTRINSIC_NAMES
        frame: dict[str, Any] = {
            "t": "service-start",
            **_declaration(service),
            "runtime_path": labels.get("ai.backend.runtime-path", ""),
            "service_path": labels.get(f"ai.backend.service-path.{service.name}", ""),
            "host": "0.0.0.0" if service.name == SSHD and kernel.network is not None else "127.0.0.1",
            "shared": exposure is PortExposure.HOST,
            "sockets": SERVICE_SOCKETS if is_intrinsic and exposure is PortExposure.HOST else None,
            "envs": dict(req.envs),
            "arguments": dict(req.arguments),
        }
        if is_intrinsic:
            has_mounts = "mounts" in self._runtime.info().capabilities
            frame["kit"] = f"{KIT_MOUNT_TARGET if has_mounts else self._kits.directory}/{await self._kits.ensure()}"
        reply_data, _ = await channel.request(frame, START_TIMEOUT_S)
        return _service_state(reply_data)

    async def start_sshd(self, kernel: Kernel) -> str | None:
        """Starts SSH for the other kernels of a cluster, if declared. Returns the reason of a failure, or None."""
        if kernel.channel is None or all(declaration["name"] != SSHD for declaration in kernel.record.services):
            return None
        try:
            await self.start(kernel, kernel.channel, StartService(kernel_id=kernel.id, name=SSHD))
        except BackendError as e:
            return e.message
        return None

    async def stop(self, kernel: Kernel, channel: KernelChannel, name: str) -> None:
        """Stops a kernel's service. Raises NotFound for an undeclared service."""
        self._find_declared(kernel, name)
        await channel.request({"t": "service-stop", "name": name}, _STOP_TIMEOUT_S)

    async def list(self, kernel: Kernel, channel: KernelChannel) -> list[ServiceState]:
        """Returns the declared services of a kernel in the state that its runner reports."""
        declared_services = [_declaration(service) for service in _declared_services(kernel)]
        if not declared_services:
            return []
        frame = {"t": "service-list", "services": declared_services}
        data, _ = await channel.request(frame, self._settings.request_timeout)
        services_data = data.get("services")
        return (
            [_service_state(service_data) for service_data in services_data] if isinstance(services_data, list) else []
        )

    @staticmethod
    def _find_declared(kernel: Kernel, name: str) -> ServicePort:
        for service in _declared_services(kernel):
            if service.name == name:
                return service
        service_names = ", ".join(service.name for service in _declared_services(kernel)) or "none"
        raise NotFound(f"the session has no service {name[:64]!r}; it has: {service_names}", data={"app": name[:64]})


def _declared_services(kernel: Kernel) -> list[ServicePort]:
    return [
        ServicePort(
            name=str(service_data["name"]),
            protocol=str(service_data["protocol"]),
            ports=tuple(service_data["container_ports"]),
            is_endpoint=bool(service_data.get("is_inference")),
        )
        for service_data in kernel.record.services
    ]


def _declaration(service: ServicePort) -> dict[str, Any]:
    return {"name": service.name, "protocol": service.protocol, "ports": list(service.ports)}


def _service_state(data: object) -> ServiceState:
    try:
        return msgspec.convert(data, ServiceState)
    except msgspec.ValidationError as e:
        raise RunError(f"the runner does not tell of a service what it should: {e}") from e
