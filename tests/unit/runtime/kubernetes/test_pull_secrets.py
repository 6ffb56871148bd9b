"""The Secret of a pod: with the login to its own registry alone, owned by the pod, made before the pod can be bound."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from ai.backend.common.errors import CreationDeferred, CreationDenied, DeadlineExceeded, Unavailable
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.common.structs import replace
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.errors import Status, refusal_of
from ai.backend.node.kube_api.objects import Pod
from ai.backend.node.kube_api.resources import PODS, SECRETS
from ai.backend.plugin.runtime import ImageRequest, WorkloadKey, WorkloadSpec
from ai.backend.runtime.kubernetes.creation import Creation
from ai.backend.runtime.kubernetes.handles import Handle, Handles
from ai.backend.runtime.kubernetes.homes import Homes
from ai.backend.runtime.kubernetes.manifest import ClusterFacts, compose_pod
from ai.backend.runtime.kubernetes.pull_secrets import PULL_SECRET_GATE, compose_pull_secret, has_pull_secret_gate
from ai.backend.runtime.kubernetes.settings import KubernetesRuntimeSettings
from tests.support.pod_security import violations

SETTINGS = KubernetesRuntimeSettings(
    runner_image="r", relay_target="shard:6020", image_pull_secrets=("of-the-site",), namespace="sessions"
)
FACTS = ClusterFacts(authority="", has_image_volumes=True, device_classes={})
PASSWORD = 'pass "word": é'
REQUEST = ImageRequest(name="cr.test:5000/lab/python:1", username="reader", password=PASSWORD)
SPEC = WorkloadSpec(
    key=WorkloadKey(kernel_id=KernelId(UUID(int=1)), attempt=2),
    session_id=SessionId(UUID(int=2)),
    image=REQUEST.name,
    image_request=REQUEST,
)
NAME = f"k-{UUID(int=1).hex}-2"


def refused(code: int, reason: str, message: str) -> Exception:
    return refusal_of(Status(message=message, reason=reason, code=code), http_status=code)


def pod_of(manifest: Mapping[str, Any]) -> Pod:
    return msgspec.convert({**manifest, "metadata": {**manifest["metadata"], "uid": "u1"}}, Pod)


class Cluster:
    """An API server that keeps secrets and one pod; ``failures`` are its next answers to a creation of a secret, which
    comes to be all the same where ``is_done``."""

    def __init__(self, *failures: Exception, is_done: bool = False) -> None:
        self.pod = pod_of(compose_pod(SPEC, SETTINGS, FACTS, "n"))
        self.failures = list(failures)
        self.is_done = is_done
        self.secrets: dict[str, Mapping[str, Any]] = {}
        self.calls: list[str] = []

    async def create(self, resource: object, body: Mapping[str, Any], namespace: str) -> None:
        assert (resource, namespace) == (SECRETS, "sessions")
        self.calls.append("create secret")
        failure = self.failures.pop(0) if self.failures else None
        name = body["metadata"]["name"]
        if failure is None and name in self.secrets:
            failure = refused(409, "AlreadyExists", "it is there")
        if failure is None or self.is_done:
            self.secrets.setdefault(name, body)
        if failure is not None:
            raise failure

    async def patch(self, resource: object, name: str, body: Mapping[str, Any], namespace: str, *, kind: str) -> Pod:
        assert (resource, name, namespace, kind) == (PODS, NAME, "sessions", "strategic")
        assert body["metadata"] == {"uid": "u1"}, "of another pod of the name nothing is changed"
        assert body["spec"]["schedulingGates"] == [{"$patch": "delete", "name": PULL_SECRET_GATE}]
        self.calls.append("open gate")
        spec = replace(self.pod.spec, scheduling_gates=())
        self.pod = replace(self.pod, spec=spec)
        return self.pod


async def finish(cluster: Cluster, spec: WorkloadSpec = SPEC) -> None:
    """Goes on with the creation of the cluster's pod to where it waits for the relay."""
    api, handles = cast("KubeApi", cluster), Handles(lambda _node, _event: None)
    creation = Creation(spec, "n", SETTINGS, FACTS, api, handles, Homes(api, SETTINGS, "n"))
    handle = handles.adopt(cluster.pod)
    assert isinstance(handle, Handle)
    handle.has_begun = True
    await creation.finish(handle)


def test_the_pod_names_its_secret_and_cannot_be_bound_before_it_is_there() -> None:
    manifest = compose_pod(SPEC, SETTINGS, FACTS, "n")
    assert manifest["spec"]["imagePullSecrets"] == [{"name": "of-the-site"}, {"name": NAME}]
    assert manifest["spec"]["schedulingGates"] == [{"name": PULL_SECRET_GATE}]
    assert violations(manifest) == []
    assert PASSWORD not in json.dumps(manifest, ensure_ascii=False)
    assert has_pull_secret_gate(pod_of(manifest))


@pytest.mark.parametrize(
    ("settings", "request_"),
    [
        (SETTINGS, None),
        (SETTINGS, replace(REQUEST, username="")),
        (SETTINGS, replace(REQUEST, name="python:3")),
        (SETTINGS.model_copy(update={"registry_credentials": "none"}), REQUEST),
        (SETTINGS.model_copy(update={"image_pull_policy": "never"}), REQUEST),
    ],
)
def test_without_credentials_to_give_there_is_no_secret(
    settings: KubernetesRuntimeSettings, request_: ImageRequest | None
) -> None:
    manifest = compose_pod(replace(SPEC, image_request=request_), settings, FACTS, "n")
    assert manifest["spec"]["imagePullSecrets"] == [{"name": "of-the-site"}]
    assert "schedulingGates" not in manifest["spec"]


def test_the_secret_has_the_login_to_one_registry_and_ends_with_the_pod() -> None:
    pod = pod_of(compose_pod(SPEC, SETTINGS, FACTS, "n"))
    secret = compose_pull_secret(pod, REQUEST, "default")
    assert secret["metadata"]["name"] == NAME
    assert secret["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Pod", "name": NAME, "uid": "u1"}]
    assert (secret["type"], secret["immutable"]) == ("kubernetes.io/dockerconfigjson", True)
    content = json.loads(base64.b64decode(secret["data"][".dockerconfigjson"]))
    assert content == {"auths": {"cr.test:5000": {"username": "reader", "password": PASSWORD}}}


@pytest.mark.parametrize("earlier", [False, True])
async def test_the_gate_opens_once_the_secret_is_there(earlier: bool) -> None:
    cluster = Cluster()
    if earlier:  # an agent that was killed in between has made it
        cluster.secrets[NAME] = {}
    await finish(cluster)
    assert cluster.calls == ["create secret", "open gate"]
    assert list(cluster.secrets) == [NAME]
    await finish(cluster)
    assert len(cluster.calls) == 2, "a pod without the gate has its Secret"


async def test_a_successor_without_the_credentials_asks_for_them_anew() -> None:
    cluster = Cluster()
    with pytest.raises(CreationDeferred, match="credentials of cr") as raised:
        await finish(cluster, replace(SPEC, image_request=replace(REQUEST, username="", password="")))
    assert raised.value.retry_after == 0.0
    assert not cluster.calls


@pytest.mark.parametrize("lost", [Unavailable("cut"), DeadlineExceeded("late"), refused(500, "InternalError", "etcd")])
@pytest.mark.parametrize("is_done", [False, True])
async def test_an_answer_that_was_lost_opens_no_gate_and_its_repetition_does(lost: Exception, is_done: bool) -> None:
    cluster = Cluster(lost, is_done=is_done)
    with pytest.raises(CreationDeferred):
        await finish(cluster)
    assert cluster.calls == ["create secret"]
    await finish(cluster)
    assert cluster.calls[1:] == ["create secret", "open gate"]


@pytest.mark.parametrize(
    ("refusal", "error", "words"),
    [
        (
            refused(403, "Forbidden", 'secrets is forbidden: User "shard" cannot create resource "secrets"'),
            CreationDenied,
            "runtime.registry-credentials",
        ),
        (refused(403, "Forbidden", "secrets is forbidden: exceeded quota: q"), CreationDeferred, "exceeded quota"),
        (
            refused(403, "Forbidden", "unable to create new content in namespace sessions: being terminated"),
            CreationDenied,
            "being terminated",
        ),
        (refused(404, "NotFound", "namespaces not found"), CreationDeferred, "removed"),
    ],
)
async def test_a_refused_secret_is_explained_without_the_password(
    refusal: Exception, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as raised:
        await finish(Cluster(refusal))
    assert PASSWORD not in str(raised.value)
