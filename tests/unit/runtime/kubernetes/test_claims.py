"""Claims are fulfilled by exactly the devices of the plan."""

from __future__ import annotations

import pytest

from ai.backend.common.errors import CreationDenied
from ai.backend.plugin.accelerator import DeviceMapping
from ai.backend.runtime.kubernetes.claims import MAX_DEVICES, compose_claim


def device(name: str) -> DeviceMapping:
    return DeviceMapping(source="", cdi_name=name)


def test_each_device_is_requested_by_its_attribute() -> None:
    claim = compose_claim(
        "k-1", {"a": "b"}, [device("gpu.test/uuid=G1"), device("nic.test/serial=N2")], {"gpu.test": "g"}
    )
    assert claim is not None
    requests = claim["spec"]["devices"]["requests"]
    assert [request["exactly"]["deviceClassName"] for request in requests] == ["g", "nic.test"]
    assert requests[0]["exactly"]["selectors"][0]["cel"]["expression"] == (
        'device.driver == "gpu.test" && device.attributes["gpu.test"].uuid == "G1"'
    )


def test_no_value_ends_the_expression() -> None:
    claim = compose_claim("k-1", {}, [device('gpu.test/uuid=" || true || "')], {})
    assert claim is not None
    expression = claim["spec"]["devices"]["requests"][0]["exactly"]["selectors"][0]["cel"]["expression"]
    assert expression.endswith(r'.uuid == "\" || true || \""')


@pytest.mark.parametrize(
    "name", ["", "GPU-1", "gpu.test/uuid", "gpu.test/uuid=", "Gpu!/uuid=1", "gpu.test/a b=1", "/a=1"]
)
def test_other_names_are_denied(name: str) -> None:
    with pytest.raises(CreationDenied):
        compose_claim("k-1", {}, [device(name)], {})


def test_there_is_no_claim_without_devices_and_none_for_too_many() -> None:
    assert compose_claim("k-1", {}, [], {}) is None
    with pytest.raises(CreationDenied):
        compose_claim("k-1", {}, [device(f"gpu.test/uuid={i}") for i in range(MAX_DEVICES + 1)], {})
