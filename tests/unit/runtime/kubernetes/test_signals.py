"""Each status of a pod means what the table says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ai.backend.common.errors import CreationDeferred, CreationDenied, ImageMissing
from ai.backend.node.kube_api.objects import Pod
from ai.backend.plugin.runtime import WorkloadExit
from ai.backend.runtime.kubernetes.signals import Ended, exit_of, has_ended, progress_of, state_of


def pod(*, phase: str = "Pending", state: dict[str, Any] | None = None, name: str = "main", **fields: Any) -> Pod:
    statuses = [] if state is None else [{"name": name, "state": state}]
    status = {"phase": phase, "containerStatuses": statuses, **fields.pop("status", {})}
    return msgspec.convert({"metadata": fields.pop("metadata", {}), "spec": fields, "status": status}, Pod)


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def terminated(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def disrupted(reason: str) -> dict[str, Any]:
    return {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}]}


@pytest.mark.parametrize(
    ("seen", "error"),
    [
        (pod(), None),
        (pod(state=waiting("ContainerCreating")), None),
        (pod(state=waiting("ImagePullBackOff", "Back-off pulling image")), None),
        (pod(state=waiting("ErrImagePull", "dial tcp: i/o timeout")), None),
        (pod(state=waiting("ErrImagePull", "failed: x: not found")), ImageMissing),
        (pod(state=waiting("ErrImagePull", "401 Unauthorized")), ImageMissing),
        (pod(state=waiting("InvalidImageName")), ImageMissing),
        (pod(state=waiting("ErrImageNeverPull")), ImageMissing),
        (pod(state=waiting("CreateContainerConfigError", "secret not found")), CreationDenied),
        (pod(state=waiting("ErrImageNeverPull"), name="relay"), CreationDeferred),
        (pod(state=terminated(128, "StartError", "exec: no such file")), CreationDenied),
        (pod(phase="Failed", status={"reason": "OutOfcpu"}), CreationDeferred),
        (pod(phase="Failed", status={"reason": "UnexpectedAdmissionError"}), CreationDeferred),
        (pod(phase="Failed", status={"reason": "NodeAffinity"}), CreationDeferred),
    ],
)
def test_why_a_pod_does_not_start(seen: Pod, error: type[Exception] | None) -> None:
    assert type(progress_of(seen).error) is (error or type(None))


def test_the_state_of_a_pod_names_all_that_explains_its_end() -> None:
    ended = pod(
        phase="Failed",
        state=terminated(137, "Error"),
        metadata={"deletionTimestamp": "2026-11-30T06:00:00Z"},
        status={"reason": "Evicted", "initContainerStatuses": [{"name": "relay", "state": {"running": {}}}]},
    )
    expected = "Failed, Evicted, deleted at 2026-11-30T06:00:00Z, relay running, main terminated with 137 Error"
    assert state_of(ended) == expected
    assert state_of(pod(state=waiting("ContainerCreating"))) == "Pending, main waiting ContainerCreating"


def test_users_read_what_the_cluster_says() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    assert "0/3 nodes" in progress_of(pod(status={"conditions": [condition]})).message
    assert "timeout" in progress_of(pod(state=waiting("ErrImagePull", "i/o timeout"))).message


@pytest.mark.parametrize(
    ("seen", "told", "reason", "ended"),
    [
        (pod(state=terminated(0)), None, "", WorkloadExit(code=0)),
        (pod(state=terminated(3)), None, "stopped", WorkloadExit(code=3, reason="stopped")),
        (pod(state=terminated(137)), None, "", WorkloadExit(signal=9)),
        (
            pod(state=terminated(137, "OOMKilled")),
            Ended(signal=9),
            "",
            WorkloadExit(signal=9, oom=True, reason="out-of-memory"),
        ),
        (pod(state=terminated(1, "OOMKilled")), None, "", WorkloadExit(code=1)),
        (pod(), Ended(code=0, reason="stopped"), "", WorkloadExit(code=0, reason="stopped")),
        (None, None, "", WorkloadExit(signal=9, reason="container-removed")),
        (pod(metadata={"deletionTimestamp": "x"}), None, "", WorkloadExit(signal=9, reason="container-removed")),
        (pod(status=disrupted("EvictionByEvictionAPI")), None, "", WorkloadExit(signal=9, reason="node-drained")),
        (pod(status=disrupted("PreemptionByScheduler")), None, "", WorkloadExit(signal=9, reason="preempted")),
        (pod(status=disrupted("DeletionByTaintManager")), None, "", WorkloadExit(signal=9, reason="agent-lost")),
        (
            pod(status={"reason": "Evicted", "message": 'Usage of EmptyDir volume "home" exceeds the limit'}),
            None,
            "",
            WorkloadExit(signal=9, reason="home-limit"),
        ),
    ],
)
def test_how_a_workload_ended(seen: Pod | None, told: Ended | None, reason: str, ended: WorkloadExit) -> None:
    assert exit_of(seen, told, reason) == ended


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        ('{"code": 0, "signal": null, "reason": "stopped"}', 0, "stopped"),
        ('{"code": 0, "signal": null, "reason": "forged"}', 1, ""),
        ('{"signal": 15, "reason": "stopped"}', 143, "stopped"),
        ("not json", 0, ""),
        ('{"code": 0, "reason": "%s"}' % ("x" * 65), 0, ""),
    ],
)
def test_last_words_count_if_they_fit(words: str, code: int, reason: str) -> None:
    assert exit_of(pod(state=terminated(code, message=words)), None, "").reason == reason


@pytest.mark.parametrize(
    "fields", [{"code": 10**30}, {"code": -1}, {"signal": 0}, {"signal": 10**9}, {"code": 0, "last_seq": 10**30}]
)
def test_no_image_ends_its_session_with_a_number_that_no_database_takes(fields: dict[str, Any]) -> None:
    """The first process may be the image's own program; its observation would hold up those of the whole node."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, Ended)


@pytest.mark.parametrize(
    ("claimed", "reason"),
    [
        ("preempted", ""),
        ("x" * 1_000_000, ""),
        ("removed", "removed"),
        ("protocol-violation: a frame\0\n", "protocol-violation: a frame??"),
    ],
)
def test_no_image_makes_up_the_reason_of_its_end(claimed: str, reason: str) -> None:
    assert exit_of(pod(), Ended(code=0, reason=claimed), "").reason == reason


def test_a_pod_that_is_being_deleted_has_not_ended() -> None:
    assert not has_ended(pod(phase="Running", state={"running": {}}, metadata={"deletionTimestamp": "x"}))
    assert has_ended(pod(phase="Running", state=terminated(0)))
    assert has_ended(pod(status=disrupted("DeletionByPodGC")))
