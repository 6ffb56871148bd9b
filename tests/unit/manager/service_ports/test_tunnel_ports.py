"""Which port of a service a tunnel goes to."""

from __future__ import annotations

import pytest

from ai.backend.common.errors import InvalidInput, NotSupported
from ai.backend.common.wire.execution import ServiceState
from ai.backend.manager.service_ports.service import choose_port


def state(*ports: int) -> ServiceState:
    return ServiceState(name="jupyter", protocol="http", ports=list(ports), status="running")


@pytest.mark.parametrize(
    ("ports", "wanted", "chosen"),
    [
        ((8080, 8090), None, 8080),
        ((8080, 8090), 8090, 8090),
        ((40001, 40002), 8090, 40002),  # a network that is shared: others than those declared
        ((40001, 40002), None, 40001),
    ],
)
def test_by_its_place_among_the_declared(ports: tuple[int, ...], wanted: int | None, chosen: int) -> None:
    assert choose_port(state(*ports), [8080, 8090], wanted) == chosen


def test_what_it_does_not_have() -> None:
    with pytest.raises(InvalidInput) as caught:
        choose_port(state(8080, 8090), [8080, 8090], 8081)
    assert caught.value.data == {"port": 8081, "ports": [8080, 8090]}
    with pytest.raises(NotSupported):
        choose_port(state(), [8080], None)
