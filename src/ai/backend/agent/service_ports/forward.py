"""Connections to what a kernel's services listen on, where the operator lets them be served."""

from __future__ import annotations

from ai.backend.agent.config.settings import ServiceSettings
from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.common.errors import Forbidden, InvalidInput
from ai.backend.common.wire.link import ByteStream
from ai.backend.plugin.runtime import AbstractRuntime, PortExposure

MAX_PORT = 65_535


class PortForwarder:
    """Opens connections to ports of kernels, with the operator's consent."""

    def __init__(self, runtime: AbstractRuntime, settings: ServiceSettings) -> None:
        self._runtime = runtime
        self._settings = settings

    async def require_consent(self, kernel: Kernel) -> PortExposure:
        """Who reaches the ports of a kernel, if anything may be served there. Ask before a service is started.

        Raises:
            Forbidden: others reach them too, and this node's operator has not consented to that; ``data`` names the
                exposure.
            Unavailable: there is no live workload. NotSupported: the runtime has no tunnels.
        """
        exposure = await self._runtime.port_exposure(kernel.key)
        if exposure is PortExposure.HOST and not self._settings.shared_network:
            message = (
                "sessions on this node share the host's network, where every user of the host reaches their services;"
                " an operator may consent to that (services.shared-network in agent.toml) or give sessions networks of"
                " their own"
            )
            raise Forbidden(message, data={"exposure": exposure.value})
        return exposure

    async def open(self, kernel: Kernel, port: int) -> ByteStream:
        """Raises as ``require_consent`` and ``AbstractRuntime.open_port``, and InvalidInput for what is no port."""
        if not 1 <= port <= MAX_PORT:
            raise InvalidInput(f"{port} is no port", data={"port": port})
        await self.require_consent(kernel)
        return await self._runtime.open_port(kernel.key, port)
