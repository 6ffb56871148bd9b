"""Describes the services of a kernel: the image's, the user's preopened ports, and the platform's own (spec 03-05, peer
facts 3.2, 3.4)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ai.backend.common.errors import InvalidInput

PORTS_LABEL = "ai.backend.service-ports"
ENDPOINTS_LABEL = "ai.backend.endpoint-ports"
PROTOCOLS = frozenset({"tcp", "http", "pty", "preopen", "internal", "vnc", "rdp"})
RESERVED_PORTS = frozenset({2000, 2001, 2002, 2003, 2200, 7681})
SSHD, TTYD = "sshd", "ttyd"

_DECLARATION_PATTERN = re.compile(
    r"(?P<name>[A-Za-z0-9][\w-]{0,63}):(?P<protocol>[a-z]{1,16}):(?P<ports>\d{1,5}|\[\d{1,5}(?:,\d{1,5})*\])", re.ASCII
)
_MAX_TEXT_LENGTH = 8_192
_BETWEEN_PORTS = re.compile(r",(?![^\[]*\])")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePort:
    """Describes a service of a kernel and its ports inside the workload. Service definitions can use ``{ports[0]}``.

    ``protocol`` is one of :data:`PROTOCOLS`; a ``preopen`` service is started by the user or the image's bootstrap.
    """

    name: str
    protocol: str
    ports: tuple[int, ...]
    is_endpoint: bool = False

    def to_wire(self) -> dict[str, Any]:
        """Returns the form that agents report and clients read (``service_ports`` of a kernel)."""
        return {
            "name": self.name,
            "protocol": self.protocol,
            "container_ports": list(self.ports),
            "host_ports": [None] * len(self.ports),
            "is_inference": self.is_endpoint,
        }


INTRINSIC_SERVICES = (
    ServicePort(name=SSHD, protocol="tcp", ports=(2200,)),
    ServicePort(name=TTYD, protocol="http", ports=(7681,)),
)


def parse_declarations(text: str) -> tuple[ServicePort, ...]:
    """Parses the service ports that an image declares as ``NAME:PROTOCOL:PORT,NAME:PROTOCOL:[PORT,PORT]``.

    Raises InvalidInput, also for reserved ports and duplicates.
    """
    if len(text) > _MAX_TEXT_LENGTH:
        raise InvalidInput(f"service ports are longer than {_MAX_TEXT_LENGTH} characters")
    services: list[ServicePort] = []
    for declaration in filter(None, (declaration.strip() for declaration in _BETWEEN_PORTS.split(text))):
        match = _DECLARATION_PATTERN.fullmatch(declaration)
        if match is None:
            raise InvalidInput(f"{declaration[:64]!r} is not NAME:PROTOCOL:PORT")
        ports = tuple(int(number) for number in match["ports"].strip("[]").split(","))
        services.append(ServicePort(name=match["name"], protocol=match["protocol"], ports=ports))
    _check_services(services)
    return tuple(services)


def _check_services(ports: Sequence[ServicePort]) -> None:
    taken_names: set[str] = {port.name for port in INTRINSIC_SERVICES}
    taken_numbers: set[int] = set()
    for service in ports:
        if service.protocol not in PROTOCOLS:
            raise InvalidInput(f"{service.protocol!r} is no protocol of services: {', '.join(sorted(PROTOCOLS))}")
        if service.name in taken_names:
            raise InvalidInput(f"the service {service.name!r} is declared twice, or is one that every session has")
        taken_names.add(service.name)
        for number in service.ports:
            if not 1 <= number <= 65_535:
                raise InvalidInput(f"{service.name} is not NAME:PROTOCOL:PORT: {number} is no port")
            if number in RESERVED_PORTS:
                raise InvalidInput(f"the port {number} is reserved for the platform")
            if number in taken_numbers:
                raise InvalidInput(f"the port {number} is declared twice")
            taken_numbers.add(number)


def declared_services(labels: Mapping[str, str]) -> tuple[ServicePort, ...]:
    """Returns the services that the labels of an image declare. Raises InvalidInput for invalid labels.

    Services of endpoints are marked.
    """
    services = parse_declarations(labels.get(PORTS_LABEL, ""))
    endpoint_names = {
        name for name in (name_text.strip() for name_text in labels.get(ENDPOINTS_LABEL, "").split(",")) if name
    }
    missing_names = endpoint_names - {service.name for service in services}
    if missing_names:
        raise InvalidInput(f"{ENDPOINTS_LABEL} names {min(missing_names)[:64]!r}, which is no service port")
    return tuple(replace(service, is_endpoint=service.name in endpoint_names) for service in services)


def kernel_services(
    labels: Mapping[str, str], preopen: Iterable[int] = (), *, intrinsic: Iterable[ServicePort] = INTRINSIC_SERVICES
) -> tuple[ServicePort, ...]:
    """Returns all services of a kernel: the image's, the user's preopened ports, and the platform's own.

    Raises InvalidInput for invalid labels, or if a preopened port is taken.
    """
    services = [*declared_services(labels)]
    taken_ports = {number for service in services for number in service.ports} | RESERVED_PORTS
    for port in preopen:
        if port in taken_ports:
            raise InvalidInput(f"the port {port} cannot be preopened: it is a service's", data={"port": port})
        services.append(ServicePort(name=str(port), protocol="preopen", ports=(port,)))
    return (*services, *intrinsic)
