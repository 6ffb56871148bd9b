"""Declarations of services in labels."""

from __future__ import annotations

import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.common.service_ports import declared_services, kernel_services, parse_declarations


def test_the_example_of_the_specification() -> None:
    jupyter, board = parse_declarations("jupyter:http:8080,tensorboard:http:6006")
    assert (jupyter.name, jupyter.protocol, jupyter.ports) == ("jupyter", "http", (8080,))
    assert (board.name, board.ports) == ("tensorboard", (6006,))


def test_several_ports_of_one_service() -> None:
    (ray,) = parse_declarations(" ray:tcp:[10001,10002] ,")
    assert ray.ports == (10001, 10002)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("jupyter", "NAME:PROTOCOL:PORT"),
        ("jupyter:http:8080;x", "NAME:PROTOCOL:PORT"),
        ("jupyter:carrier-pigeon:80", "NAME:PROTOCOL:PORT"),
        ("jupyter:ftp:80", "no protocol"),
        ("a:tcp:0", "no port"),
        ("a:tcp:65536", "no port"),
        ("a:tcp:2000", "reserved"),
        ("a:tcp:2200", "reserved"),
        ("a:http:7681", "reserved"),
        ("a:tcp:80,a:tcp:81", "twice"),
        ("a:tcp:80,b:tcp:80", "twice"),
        ("sshd:tcp:22", "every session"),
        ("a:tcp:[80,80]", "twice"),
        pytest.param("," * 1_000_000, "longer than", marks=pytest.mark.timeout(60)),
    ],
)
def test_what_is_no_declaration(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        parse_declarations(text)


def test_endpoints_are_marked() -> None:
    labels = {"ai.backend.service-ports": "api:http:8000,ui:http:8001", "ai.backend.endpoint-ports": "api"}
    assert [service.is_endpoint for service in declared_services(labels)] == [True, False]
    with pytest.raises(InvalidInput, match="no service port"):
        declared_services({"ai.backend.endpoint-ports": "api"})


def test_a_kernel_has_the_intrinsic_ones_and_what_its_user_opens() -> None:
    services = kernel_services({"ai.backend.service-ports": "api:http:8000"}, [9000])
    assert [service.name for service in services] == ["api", "9000", "sshd", "ttyd"]
    assert services[1].to_wire() == {
        "name": "9000",
        "protocol": "preopen",
        "container_ports": [9000],
        "host_ports": [None],
        "is_inference": False,
    }
    with pytest.raises(InvalidInput, match="a service's"):
        kernel_services({"ai.backend.service-ports": "api:http:8000"}, [8000])
    with pytest.raises(InvalidInput, match="a service's"):
        kernel_services({}, [2200])
