"""The network of a session belongs to one node, whose agent alone removes it; one listing serves all nodes."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID, uuid4

import msgspec
import pytest

from ai.backend.common.ids import KernelId, SessionId
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.errors import ObjectExists
from ai.backend.node.kube_api.objects import KubeObject, Pod
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec
from ai.backend.runtime.kubernetes.handles import Handles
from ai.backend.runtime.kubernetes.manifest import ClusterFacts, compose_pod
from ai.backend.runtime.kubernetes.networks import SessionNetworks
from ai.backend.runtime.kubernetes.policies import session_policy
from ai.backend.runtime.kubernetes.records import NODE_ANNOTATION
from ai.backend.runtime.kubernetes.settings import KubernetesRuntimeSettings

SETTINGS = KubernetesRuntimeSettings(runner_image="r", relay_target="t:1")
FACTS = ClusterFacts(authority="", has_image_volumes=True, device_classes={})


class Policies:
    """Stands for the policies of a namespace."""

    def __init__(self) -> None:
        self.by_name: dict[str, dict[str, Any]] = {}
        self.lists = 0

    def add(self, manifest: dict[str, Any]) -> None:
        self.by_name[manifest["metadata"]["name"]] = manifest

    async def create(self, _resource: object, manifest: dict[str, Any], _namespace: str) -> None:
        if manifest["metadata"]["name"] in self.by_name:
            raise ObjectExists("there is one")
        self.add(manifest)

    async def patch(self, _resource: object, name: str, body: dict[str, Any], _namespace: str) -> None:
        self.by_name[name]["metadata"]["annotations"].update(body["metadata"]["annotations"])

    async def delete(self, _resource: object, name: str, _namespace: str) -> bool:
        return self.by_name.pop(name, None) is not None

    async def list(self, _resource: object, _namespace: str, *, label_selector: str) -> tuple[list[KubeObject], str]:
        self.lists += 1
        return [msgspec.convert({"metadata": item["metadata"]}, KubeObject) for item in self.by_name.values()], "1"


@pytest.fixture
def policies() -> Policies:
    return Policies()


@pytest.fixture
def handles() -> Handles:
    return Handles(lambda node, exited: None)


@pytest.fixture
def networks(policies: Policies, handles: Handles) -> SessionNetworks:
    return SessionNetworks(cast("KubeApi", policies), SETTINGS, handles)


def a_session() -> SessionId:
    return SessionId(uuid4())


def a_pod(session_id: SessionId, node: str) -> Pod:
    key = WorkloadKey(kernel_id=KernelId(uuid4()), attempt=0)
    manifest = compose_pod(WorkloadSpec(key=key, session_id=session_id, image="i"), SETTINGS, FACTS, node)
    return msgspec.convert({**manifest, "metadata": {**manifest["metadata"], "uid": str(uuid4())}}, Pod)


async def test_agents_of_other_nodes_leave_a_network_alone(networks: SessionNetworks, policies: Policies) -> None:
    session_id = a_session()
    await networks.create(session_id, ["main1", "sub1"], "n1")
    assert await networks.on_node("n2") == []
    assert await networks.on_node("n1") == [session_id]
    await networks.remove(session_id, "n2")
    assert policies.by_name
    await networks.remove(session_id, "n1")
    assert not policies.by_name
    assert await networks.on_node("n1") == []


async def test_nodes_share_a_listing(networks: SessionNetworks, policies: Policies) -> None:
    session_ids = [a_session(), a_session()]
    for session_id, node in zip(session_ids, ("n1", "n2"), strict=True):
        policies.add(session_policy(SETTINGS.instance, session_id, [], node))
    assert await networks.on_node("n1") == session_ids[:1]
    assert await networks.on_node("n2") == session_ids[1:]
    assert policies.lists == 1


async def test_a_session_takes_its_network_to_its_next_node(networks: SessionNetworks, policies: Policies) -> None:
    session_id = a_session()
    policies.add(session_policy(SETTINGS.instance, session_id, [], "n2"))
    assert await networks.on_node("n2") == [session_id]
    await networks.create(session_id, [], "n1")
    assert await networks.on_node("n2") == []
    await networks.remove(session_id, "n2")
    [policy] = policies.by_name.values()
    assert policy["metadata"]["annotations"][NODE_ANNOTATION] == "n1"


async def test_a_network_of_an_earlier_release_is_anybodys_once_its_pods_are_gone(
    networks: SessionNetworks, policies: Policies, handles: Handles
) -> None:
    session_id = a_session()
    policies.add(session_policy(SETTINGS.instance, session_id, [], ""))
    pod = a_pod(session_id, "n2")
    handle = handles.adopt(pod)
    assert handle is not None
    assert await networks.on_node("n1") == []
    handles.forget(handle)
    assert await networks.on_node("n1") == [session_id]
    await networks.remove(session_id, "n1")
    assert not policies.by_name


async def test_what_changes_during_a_listing_is_newer_than_it(
    networks: SessionNetworks, policies: Policies, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved, removed = a_session(), a_session()
    for session_id in (moved, removed):
        policies.add(session_policy(SETTINGS.instance, session_id, [], "n1"))

    async def slow_list(*args: Any, **options: Any) -> tuple[list[KubeObject], str]:
        answer = await Policies.list(policies, *args, **options)
        answer = msgspec.json.decode(msgspec.json.encode(answer), type=tuple[list[KubeObject], str])
        await networks.create(moved, [], "n2")
        await networks.remove(removed, "n1")
        return answer

    monkeypatch.setattr(policies, "list", slow_list)
    assert await networks.on_node("n1") == []
    assert await networks.on_node("n2") == [moved]


async def test_a_policy_of_somebody_else_is_passed_over(networks: SessionNetworks, policies: Policies) -> None:
    policy = session_policy(SETTINGS.instance, SessionId(UUID(int=1)), [], "n1")
    policy["metadata"]["labels"]["backend.ai/session"] = "no id"
    policies.add(policy)
    assert await networks.on_node("n1") == []
