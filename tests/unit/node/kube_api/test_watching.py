"""Frames of a watch are decoded whatever the boundaries of its chunks are; refusals in it are raised."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ai.backend.common.errors import Unavailable
from ai.backend.node.kube_api import watching
from ai.backend.node.kube_api.decoding import Undecodable
from ai.backend.node.kube_api.errors import VersionExpired
from ai.backend.node.kube_api.objects import Pod, ResourceClaim
from ai.backend.node.kube_api.watching import WatchDecoder

# As a server of 1.36 sends them, with fields that the projection skips.
ADDED = json.dumps(
    {
        "type": "ADDED",
        "object": {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {
                "name": "k-1",
                "namespace": "sessions",
                "uid": "9c0d",
                "resourceVersion": "812",
                "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}],
            },
            "spec": {"nodeName": "n1", "containers": [{"name": "main", "resources": {"requests": {"cpu": "500m"}}}]},
            "status": {
                "phase": "Failed",
                "podIP": "10.1.2.3",
                "containerStatuses": [
                    {"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
                ],
            },
        },
    }
).encode()
BOOKMARK = b'{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"900"}}}'
EXPIRED = (
    b'{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",'
    b'"message":"too old resource version: 10 (812)","reason":"Expired","code":410}}'
)


@pytest.mark.parametrize("size", [1, 7, 64, 100_000])
def test_events_come_whole_from_chunks_of_any_size(size: int) -> None:
    data = ADDED + b"\n" + BOOKMARK + b"\n\n" + ADDED[:50]
    decoder = WatchDecoder(Pod)
    events = [event for i in range(0, len(data), size) for event in decoder.feed(data[i : i + size])]
    assert [event.type for event in events] == ["ADDED", "BOOKMARK"]
    pod = events[0].object
    assert pod.key == ("sessions", "k-1")
    assert pod.spec.containers[0].resources.requests == {"cpu": "500m"}
    terminated = pod.status.container_statuses[0].state.terminated
    assert (terminated.exit_code, terminated.reason) == (137, "OOMKilled")
    assert pod.status.pod_ip == "10.1.2.3"
    assert events[1].object.metadata.resource_version == "900"


def test_a_refusal_in_the_stream_is_raised_after_what_came_before() -> None:
    decoder = WatchDecoder(Pod)
    events = decoder.feed(ADDED + b"\n" + EXPIRED + b"\n")
    assert next(events).type == "ADDED"
    with pytest.raises(VersionExpired, match="too old resource version") as refusal:
        next(events)
    assert (refusal.value.status, refusal.value.reason) == (410, "Expired")


@pytest.mark.parametrize("line", [b"<html>", b"[]", b'{"type":"ADDED","object":{"metadata":{"name":7}}}', b"\xff"])
def test_what_is_no_event_is_an_error_of_the_connection(line: bytes) -> None:
    with pytest.raises(Unavailable, match="a watch sent"):
        list(WatchDecoder(Pod).feed(line + b"\n"))


def test_an_endless_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MAX_LINE_BYTES", 100)
    decoder = WatchDecoder(Pod)
    assert list(decoder.feed(b"x" * 100)) == []
    with pytest.raises(Unavailable, match="more than 100 bytes"):
        list(decoder.feed(b"x"))


def claim(name: str, version: int, **fields: Any) -> bytes:
    metadata = {"name": name, "namespace": "lab", "uid": f"u-{name}", "resourceVersion": str(version)}
    return json.dumps({"type": "MODIFIED", "object": {"metadata": metadata, **fields}}).encode() + b"\n"


def test_an_object_of_another_form_costs_no_other_one_anything() -> None:
    lines = claim("a", 4), claim("odd", 5, status={"devices": 7}), claim("b", 6)
    first, odd, last = list(WatchDecoder(ResourceClaim).feed(b"".join(lines)))
    assert (first.object.key, last.object.key) == (("lab", "a"), ("lab", "b"))
    assert isinstance(odd.object, Undecodable)
    assert (odd.type, odd.object.key, odd.object.metadata.uid) == ("MODIFIED", ("lab", "odd"), "u-odd")
    assert odd.object.metadata.resource_version == "5"
    assert "$.object.status.devices" in odd.object.problem


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a\\"[":', "}")])
def test_a_claim_with_deep_parameters_is_decoded(opening: str, closing: str) -> None:
    """A user may write 10 KB of them, and the API server takes JSON of 10,000 levels."""
    deep = opening * 5000 + "1" + closing * 5000
    line = claim("deep", 5, spec={"parameters": "DEEP"}, status={"devices": [{"device": "gpu"}]})
    (event,) = WatchDecoder(ResourceClaim).feed(line.replace(b'"DEEP"', deep.encode()))
    assert event.object.key == ("lab", "deep")
    assert event.object.status.devices[0].device == "gpu"
    odd = line.replace(b'"DEEP"', deep.encode()).replace(b'[{"device": "gpu"}]', b"7")
    (event,) = WatchDecoder(ResourceClaim).feed(odd)
    assert isinstance(event.object, Undecodable)
