"""Messages have the bytes that a kubelet expects."""

from __future__ import annotations

import pytest

from ai.backend.kubeacc.node_plugin import wire


def test_fields_have_the_numbers_of_the_kubelet() -> None:
    request = wire.device_plugin.RegisterRequest(version="v1beta1", endpoint="a.sock", resource_name="x.y/z")
    assert request.SerializeToString() == b"\x0a\x07v1beta1\x12\x06a.sock\x1a\x05x.y/z"
    device = wire.device_plugin.Device(ID="a", health="Healthy")
    device.topology.nodes.add(ID=1)
    assert device.SerializeToString() == b"\x0a\x01a\x12\x07Healthy\x1a\x04\x0a\x02\x08\x01"


def test_a_map_has_an_entry_for_each_claim_also_an_empty_one() -> None:
    answer = wire.dra.NodePrepareResourcesResponse()
    answer.claims["u"].devices.add(device_name="d", share_id="")
    answer.claims["v"].error = ""
    decoded = wire.dra.NodePrepareResourcesResponse.FromString(answer.SerializeToString())
    assert set(decoded.claims) == {"u", "v"}
    assert decoded.claims["u"].devices[0].HasField("share_id")
    assert answer.claims["u"].devices[0].SerializeToString() == b"\x1a\x01d\x2a\x00"


def test_unknown_fields_of_newer_kubelets_are_skipped() -> None:
    claim = wire.dra.Claim.FromString(b"\x0a\x02ns\x12\x01u\x1a\x01n\x7a\x03new")
    assert (claim.namespace, claim.uid, claim.name) == ("ns", "u", "n")


@pytest.mark.parametrize("service", sorted(wire.SERVICES))
def test_every_method_has_its_messages(service: str) -> None:
    for _, request, response, _ in wire.SERVICES[service]:
        assert request.FromString(b"") == request()
        assert response.FromString(b"") == response()
