"""Pods and homes of nodes that were removed from the cluster go after a while, those of all others stay."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from ai.backend.common.errors import Unavailable
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.errors import ObjectConflict
from ai.backend.node.kube_api.objects import KubeObject, Pod
from ai.backend.node.kube_api.resources import NETWORK_POLICIES, NODES, VOLUME_CLAIMS
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec
from ai.backend.runtime.kubernetes.handles import Handle, Handles
from ai.backend.runtime.kubernetes.homes import Homes, home_name
from ai.backend.runtime.kubernetes.manifest import ClusterFacts, compose_pod
from ai.backend.runtime.kubernetes.policies import session_policy
from ai.backend.runtime.kubernetes.removed_nodes import RemovedNodes
from ai.backend.runtime.kubernetes.settings import KubernetesRuntimeSettings

SETTINGS = KubernetesRuntimeSettings(runner_image="r", relay_target="t:1", home_volume="claim", removed_node_s=100)
FACTS = ClusterFacts(authority="", has_image_volumes=True, device_classes={})
GONE = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}


class FakeCluster:
    """Nodes, and the claims and policies of a namespace."""

    def __init__(self) -> None:
        self.nodes: set[str] = set()
        self.claims: dict[str, dict[str, Any]] = {}
        self.policies: dict[str, dict[str, Any]] = {}
        self.is_away = False
        self.asked: list[str] = []

    async def create(self, _resource: object, manifest: dict[str, Any], _namespace: str) -> None:
        self.claims[manifest["metadata"]["name"]] = manifest

    async def find(self, resource: object, name: str, namespace: str = "") -> KubeObject | None:
        if self.is_away:
            raise Unavailable("no answer")
        assert (resource, namespace) == (NODES, "")
        self.asked.append(name)
        return KubeObject() if name in self.nodes else None

    async def list(self, resource: object, namespace: str, *, label_selector: str) -> tuple[list[KubeObject], str]:
        assert namespace == SETTINGS.namespace
        has_session = {VOLUME_CLAIMS: "", NETWORK_POLICIES: ",backend.ai/session"}[cast("Any", resource)]
        assert label_selector == f"backend.ai/instance=default{has_session}"
        listed = [
            msgspec.convert({"metadata": {**claim["metadata"], "uid": f"uid-{name}"}}, KubeObject)
            for name, claim in self._objects(resource).items()
        ]
        return listed, "1"

    async def delete(self, resource: object, name: str, _namespace: str, *, uid: str) -> None:
        assert uid == f"uid-{name}"
        del self._objects(resource)[name]

    def _objects(self, resource: object) -> dict[str, dict[str, Any]]:
        return self.claims if resource is VOLUME_CLAIMS else self.policies


def spec_of(number: int) -> WorkloadSpec:
    key = WorkloadKey(kernel_id=KernelId(UUID(int=number)), attempt=1)
    return WorkloadSpec(key=key, session_id=SessionId(UUID(int=number)), image="i")


class Scene:
    """A cluster in which this agent serves the node ``here``; workload 1 was on ``away``, workload 2 is here."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.now = 1000.0
        self.handles = Handles(lambda _node, _event: None)
        self.released: list[WorkloadKey] = []
        self.removed_nodes = RemovedNodes(
            cast("KubeApi", self.cluster),
            SETTINGS,
            self.handles,
            served_nodes=lambda: {"here"},
            release=self.release,
            clock=lambda: self.now,
        )

    async def release(self, handle: Handle) -> None:
        self.released.append(handle.key)
        self.handles.forget(handle)

    async def start(self, number: int, node: str, *, is_given_up: bool) -> None:
        """Makes a workload with its home; the cluster has given its pod up with its node, or not."""
        await Homes(cast("KubeApi", self.cluster), SETTINGS, node).ensure(spec_of(number))
        manifest = compose_pod(spec_of(number), SETTINGS, FACTS, node)
        status = {"phase": "Failed", "conditions": [GONE]} if is_given_up else {"phase": "Running"}
        metadata = {**manifest["metadata"], "uid": f"u{number}"}
        self.handles.adopt(msgspec.convert({**manifest, "metadata": metadata, "status": status}, Pod))

    @property
    def homes(self) -> set[str]:
        return set(self.cluster.claims)


@pytest.fixture
async def scene() -> Scene:
    scene = Scene()
    await scene.start(1, "away", is_given_up=True)
    await scene.start(2, "here", is_given_up=False)
    return scene


HOME, OWN_HOME = home_name(KernelId(UUID(int=1)), "away"), home_name(KernelId(UUID(int=2)), "here")


async def test_what_a_removed_node_had_goes_after_the_time_of_the_setting(scene: Scene) -> None:
    await scene.removed_nodes.sweep()
    scene.now += SETTINGS.removed_node_s - 1
    await scene.removed_nodes.sweep()
    assert (scene.homes, scene.released) == ({HOME, OWN_HOME}, [])
    scene.now += 1
    await scene.removed_nodes.sweep()
    assert scene.homes == {OWN_HOME}
    assert scene.released == [spec_of(1).key]
    assert "here" not in scene.cluster.asked, "its agent is in this process"
    await scene.removed_nodes.sweep()
    assert scene.homes == {OWN_HOME}


async def test_a_network_of_a_removed_node_goes_with_it(scene: Scene) -> None:
    for number, node in ((1, "away"), (2, "here"), (3, "")):
        policy = session_policy(SETTINGS.instance, SessionId(UUID(int=number)), [], node)
        scene.cluster.policies[policy["metadata"]["name"]] = policy
    names = list(scene.cluster.policies)
    await scene.removed_nodes.sweep()
    assert list(scene.cluster.policies) == names
    scene.now += SETTINGS.removed_node_s
    await scene.removed_nodes.sweep()
    assert list(scene.cluster.policies) == names[1:]


async def test_a_node_that_comes_back_in_time_keeps_everything(scene: Scene) -> None:
    await scene.removed_nodes.sweep()
    scene.cluster.nodes = {"away"}
    scene.now += 10 * SETTINGS.removed_node_s
    await scene.removed_nodes.sweep()
    scene.cluster.nodes = set()
    await scene.removed_nodes.sweep()
    assert (scene.homes, scene.released) == ({HOME, OWN_HOME}, []), "its time begins anew"


async def test_a_pod_that_the_cluster_has_not_given_up_stays(scene: Scene) -> None:
    await scene.start(3, "away", is_given_up=False)
    await scene.removed_nodes.sweep()
    scene.now += SETTINGS.removed_node_s
    await scene.removed_nodes.sweep()
    assert scene.released == [spec_of(1).key]


async def test_nothing_is_concluded_while_the_cluster_cannot_be_asked(scene: Scene) -> None:
    await scene.removed_nodes.sweep()
    scene.cluster.is_away = True
    scene.now += 10 * SETTINGS.removed_node_s
    with pytest.raises(Unavailable):
        await scene.removed_nodes.sweep()
    assert (scene.homes, scene.released) == ({HOME, OWN_HOME}, [])


async def test_a_home_of_a_node_that_nobody_has_noted_stays(scene: Scene) -> None:
    del scene.cluster.claims[HOME]["metadata"]["annotations"]["backend.ai/node"]
    await scene.removed_nodes.sweep()
    scene.now += SETTINGS.removed_node_s
    await scene.removed_nodes.sweep()
    assert HOME in scene.homes


async def test_a_home_that_is_another_one_by_now_stops_no_round(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise ObjectConflict("the uid is another one")

    monkeypatch.setattr(scene.cluster, "delete", refuse)
    await scene.removed_nodes.sweep()
    scene.now += SETTINGS.removed_node_s
    await scene.removed_nodes.sweep()
    assert scene.released == [spec_of(1).key]
