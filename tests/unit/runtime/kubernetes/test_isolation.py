"""Only a probe that saw one pod closed and the other open says that policies are enforced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec
import pytest

from ai.backend.common.errors import Unavailable
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.errors import ObjectConflict
from ai.backend.node.kube_api.objects import Pod
from ai.backend.node.relay import probe
from ai.backend.runtime.kubernetes.isolation import PROBE_LABEL, are_policies_enforced, remove_left_probes
from ai.backend.runtime.kubernetes.settings import KubernetesRuntimeSettings
from tests.support.pod_security import violations

SETTINGS = KubernetesRuntimeSettings(runner_image="r", relay_target="shard:6020")


class FakeApi:
    """An API server with a node that runs every pod at once."""

    def __init__(self, exit_code: int | None) -> None:
        self.exit_code = exit_code
        self.pods: dict[str, Mapping[str, Any]] = {}
        self.made: list[Mapping[str, Any]] = []

    async def create(self, _resource: object, body: Mapping[str, Any], _namespace: str) -> None:
        if self.exit_code is None:
            raise Unavailable("the API server does not answer")
        self.made.append(body)
        self.pods[body["metadata"]["name"]] = body

    async def get(self, _resource: object, name: str, _namespace: str) -> Pod:
        calls = "call" in self.pods[name]["spec"]["containers"][0]["command"]
        terminated = {"name": "probe", "state": {"terminated": {"exitCode": self.exit_code}}}
        status = {"phase": "Failed", "containerStatuses": [terminated]} if calls else {"phase": "Running"}
        return msgspec.convert({"status": {**status, "podIP": "10.0.0.1"}}, Pod)

    async def delete(self, _resource: object, name: str, _namespace: str, *, grace_s: int) -> bool:
        assert grace_s == 0
        return self.pods.pop(name, None) is not None


@pytest.mark.parametrize(
    ("exit_code", "verdict"),
    [(probe.ENFORCED, True), (probe.NOT_ENFORCED, False), (probe.UNKNOWN, None), (137, None), (None, None)],
)
async def test_the_verdict_is_that_of_the_caller(exit_code: int | None, verdict: bool | None) -> None:
    api = FakeApi(exit_code)
    assert await are_policies_enforced(cast("KubeApi", api), SETTINGS) is verdict
    assert not api.pods, "its pods are removed"
    assert not [fault for pod in api.made for fault in violations(pod)]


async def test_what_a_killed_agent_left_of_its_probe_is_removed() -> None:
    removed: list[tuple[str, str]] = []

    class Api:
        async def list(self, _resource: object, namespace: str, *, label_selector: str) -> tuple[list[Pod], str]:
            assert (namespace, label_selector) == (SETTINGS.namespace, f"{PROBE_LABEL}={SETTINGS.instance}")
            return [msgspec.convert({"metadata": {"name": f"probe-{n}", "uid": f"uid-{n}"}}, Pod) for n in "ab"], ""

        async def delete(self, _resource: object, name: str, _namespace: str, *, uid: str, grace_s: int) -> bool:
            removed.append((name, uid))
            if name == "probe-a":
                raise ObjectConflict("another pod has this name by now")
            return grace_s == 0

    await remove_left_probes(cast("KubeApi", Api()), SETTINGS, after_s=0)
    assert removed == [("probe-a", "uid-a"), ("probe-b", "uid-b")]


def test_a_caller_needs_both_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ai.backend.node.relay.probe.time.sleep", lambda _s: None)
    for open_hosts, verdict in (
        ({"allowed"}, probe.ENFORCED),
        ({"allowed", "forbidden"}, probe.NOT_ENFORCED),
        (set[str](), probe.UNKNOWN),
        ({"forbidden"}, probe.UNKNOWN),
    ):
        monkeypatch.setattr(probe, "is_reachable", lambda host, _port, hosts=open_hosts: host in hosts)
        assert probe.call(1, "forbidden", "allowed") == verdict
