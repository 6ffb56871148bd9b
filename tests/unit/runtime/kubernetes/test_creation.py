"""What the API server answers to a creation, and what is made of lost and doubled answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from ai.backend.common.errors import CreationDeferred, CreationDenied, DeadlineExceeded, Unavailable
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.errors import Status, refusal_of
from ai.backend.node.kube_api.objects import Pod
from ai.backend.plugin.accelerator import DeviceMapping, WorkloadConfig
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec
from ai.backend.runtime.kubernetes import creation as creation_module
from ai.backend.runtime.kubernetes.creation import Creation
from ai.backend.runtime.kubernetes.handles import Handles
from ai.backend.runtime.kubernetes.homes import Homes
from ai.backend.runtime.kubernetes.manifest import ClusterFacts, compose_pod
from ai.backend.runtime.kubernetes.settings import KubernetesRuntimeSettings

SETTINGS = KubernetesRuntimeSettings(runner_image="r", relay_target="shard:6020")
FACTS = ClusterFacts(authority="", has_image_volumes=True, device_classes={})
KEY = WorkloadKey(kernel_id=KernelId(UUID(int=1)), attempt=1)
SPEC = WorkloadSpec(key=KEY, session_id=SessionId(UUID(int=2)), image="i")


def refused(code: int, reason: str, message: str) -> Exception:
    return refusal_of(Status(message=message, reason=reason, code=code), http_status=code)


EXISTS = refused(409, "AlreadyExists", "it is there")


class FakeApi:
    """An API server that keeps one pod, and fails as it is told to: before or after it has done what was asked."""

    def __init__(self, *failures: tuple[str, Exception]) -> None:
        self.failures = list(failures)
        self.pod: Pod | None = None
        self.posts = 0

    async def create(self, _resource: object, body: Mapping[str, Any], _namespace: str) -> Pod:
        self.posts += 1
        when, failure = self.failures.pop(0) if self.failures else ("", None)
        if when == "before" and failure is not None:
            raise failure
        if self.pod is not None:
            if self.pod.metadata.deletion_timestamp:
                self.pod = None  # it is gone by the next attempt
            raise EXISTS
        metadata = {**body["metadata"], "uid": "u1"}
        self.pod = msgspec.convert({"metadata": metadata}, Pod)
        if failure is not None:
            raise failure
        return self.pod

    async def find(self, _resource: object, _name: str, _namespace: str) -> Pod | None:
        return self.pod


def creation(api: FakeApi, spec: WorkloadSpec = SPEC) -> Creation:
    kube, handles = cast("KubeApi", api), Handles(lambda _node, _event: None)
    return Creation(spec, "n", SETTINGS, FACTS, kube, handles, Homes(kube, SETTINGS, "n"))


async def create_pod(api: FakeApi) -> Pod:
    manifest = compose_pod(SPEC, SETTINGS, FACTS, "n")
    return await creation(api)._create_pod(manifest)


@pytest.mark.parametrize(
    "lost", [Unavailable("cut"), DeadlineExceeded("late"), refused(500, "InternalError", "etcd"), EXISTS]
)
async def test_a_pod_whose_answer_was_lost_is_found(lost: Exception) -> None:
    api = FakeApi(("after", lost))
    pod = await create_pod(api)
    assert pod.metadata.uid == "u1"
    assert api.posts == 1


async def test_an_answer_that_was_lost_before_it_was_done_defers() -> None:
    with pytest.raises(CreationDeferred):
        await create_pod(FakeApi(("before", Unavailable("cut"))))


async def test_a_pod_of_the_name_that_is_being_deleted_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation_module, "POD_DELETION_CHECK_S", 0.0)
    api = FakeApi()
    api.pod = msgspec.convert({"metadata": {"uid": "u0", "deletionTimestamp": "x"}}, Pod)
    assert (await create_pod(api)).metadata.uid == "u1"
    assert api.posts == 2


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (refused(403, "Forbidden", "pods is forbidden: exceeded quota: q"), CreationDeferred),
        (refused(403, "Forbidden", 'violates PodSecurity "restricted:latest"'), CreationDenied),
        (refused(403, "Forbidden", 'User "shard" cannot create resource "pods"'), CreationDenied),
        (refused(422, "Invalid", "spec.containers[0].image: Required value"), CreationDenied),
        (refused(404, "NotFound", 'namespaces "sessions" not found'), CreationDenied),
        (refused(429, "TooManyRequests", "too many requests"), CreationDeferred),
    ],
)
async def test_refusals_are_told_in_the_words_of_the_cluster(refusal: Exception, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        await create_pod(FakeApi(("before", refusal)))
    assert str(refusal) in str(raised.value)


async def test_a_cluster_without_claims_has_no_devices() -> None:
    api = FakeApi(("before", refused(404, "NotFound", "the server could not find the requested resource")))
    spec = WorkloadSpec(
        key=KEY,
        session_id=SPEC.session_id,
        image="i",
        config=WorkloadConfig(devices=(DeviceMapping(source="", cdi_name="gpu.test/uuid=G1"),)),
    )
    with pytest.raises(CreationDenied, match=r"resource\.k8s\.io/v1"):
        await creation(api, spec).run()
    assert api.pod is None
