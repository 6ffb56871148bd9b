"""Measures our client of the Kubernetes API."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from ai.backend.node.kube_api.objects import Pod
from ai.backend.node.kube_api.watching import WatchDecoder
from bench.figures import Figure, benchmark, spread

DECODED_PER_S = 50_000
_EVENTS = 2_000
_ROUNDS = 7
_CHUNK_BYTES = 1 << 16


def pod_event(number: int) -> dict[str, Any]:
    """Returns an event of a running pod with two containers and what a kubelet and a controller add, about 8 kB."""
    container = {
        "image": "registry.example/python:3.12",
        "env": [{"name": f"NAME_{i}", "value": "value" * 6} for i in range(12)],
        "resources": {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"cpu": "2", "memory": "4Gi"}},
        "volumeMounts": [{"name": f"volume-{i}", "mountPath": f"/mnt/{i}", "subPath": f"a/{i}"} for i in range(8)],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    owned: dict[str, Any] = {f"f:field-{i}": {".": {}, "f:value": {}} for i in range(24)}
    state = {"running": {"startedAt": "2026-11-23T12:00:00Z"}}
    return {
        "type": "MODIFIED",
        "object": {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {
                "name": f"k-{number:032x}-1",
                "namespace": "sessions",
                "uid": f"{number:036x}",
                "resourceVersion": str(100_000 + number),
                "labels": {f"backend.ai/label-{i}": "value" for i in range(5)},
                "annotations": {"backend.ai/kernel": f"{number:032x}"},
                "managedFields": [
                    {"manager": name, "operation": "Update", "fieldsV1": {"f:metadata": owned, "f:spec": owned}}
                    for name in ("shard", "kubelet")
                ],
            },
            "spec": {
                "nodeName": f"node-{number % 1000}",
                "containers": [{"name": "main", **container}],
                "initContainers": [{"name": "relay", "restartPolicy": "Always", **container}],
                "volumes": [{"name": f"volume-{i}", "emptyDir": {}} for i in range(8)],
            },
            "status": {
                "phase": "Running",
                "podIP": "10.2.3.4",
                "conditions": [{"type": f"Condition{i}", "status": "True"} for i in range(5)],
                "containerStatuses": [{"name": "main", "ready": True, "state": state}],
                "initContainerStatuses": [{"name": "relay", "ready": True, "state": state}],
            },
        },
    }


@benchmark("kubernetes-watch", "decode a watch of pods from its chunks, against json of the standard library")
def kubernetes_watch() -> Sequence[Figure]:
    data = b"".join(json.dumps(pod_event(i), separators=(",", ":")).encode() + b"\n" for i in range(_EVENTS))
    chunks = [data[i : i + _CHUNK_BYTES] for i in range(0, len(data), _CHUNK_BYTES)]
    lines = data.splitlines()

    def ours() -> int:
        decoder = WatchDecoder(Pod)
        return sum(event.object.spec.node_name != "" for chunk in chunks for event in decoder.feed(chunk))

    def plain() -> int:
        return sum(json.loads(line)["object"]["spec"]["nodeName"] != "" for line in lines)

    rates, references = [], []
    for _ in range(_ROUNDS):
        rates.append(_per_second(ours))
        references.append(_per_second(plain))
    value = statistics.median(rates)
    return [
        Figure(
            name="kubernetes-watch-decoding",
            value=value,
            unit="events/s",
            reference=statistics.median(references),
            reference_is="json.loads of the same lines",
            target=f">= {DECODED_PER_S} pod events in a second of processor time",
            holds=value >= DECODED_PER_S,
            detail={**spread(rates), "event_bytes": len(data) / _EVENTS},
        )
    ]


def _per_second(measured: Callable[[], int]) -> float:
    started_at = time.process_time()
    events = measured()
    elapsed_s = time.process_time() - started_at
    if events != _EVENTS:
        raise AssertionError(f"{events} of {_EVENTS} events were decoded")
    return events / elapsed_s
