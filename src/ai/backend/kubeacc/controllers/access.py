"""Updates the admission policy of operations when AcceleratorPolicies change."""

from __future__ import annotations

import time

import msgspec

from ai.backend.kubeacc.controllers.cluster_view import ClusterView
from ai.backend.kubeacc.crd.objects import POLICIES
from ai.backend.kubeacc.crd.vocabulary import CONTROLLER_MANAGER
from ai.backend.kubeacc.policies.admission import binding, operations_policy
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.objects import KubeObject
from ai.backend.node.kube_api.resources import Resource

_REPEAT_S = 60.0
_GROUP = "admissionregistration.k8s.io"
ADMISSION_POLICIES = Resource(
    _GROUP, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", KubeObject, False
)
ADMISSION_BINDINGS = Resource(
    _GROUP, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", KubeObject, False
)


class AccessController:
    """Writes the admission policy again when a policy changes, and each minute, in case somebody changed or removed it.

    Also writes the status of policies.
    """

    def __init__(self, api: KubeApi, view: ClusterView) -> None:
        self._api, self._view = api, view
        self._written, self._last_written_at = b"", 0.0

    async def reconcile(self, _key: str) -> float | None:
        policies = {policy.metadata.name: policy.spec for policy in self._view.policies.all()}
        manifest = operations_policy(policies)
        encoded_manifest = msgspec.json.encode(manifest)
        now = time.monotonic()
        if encoded_manifest != self._written or now - self._last_written_at >= _REPEAT_S:
            name = manifest["metadata"]["name"]
            await self._api.apply(ADMISSION_POLICIES, name, manifest, manager=CONTROLLER_MANAGER, force=True)
            await self._api.apply(ADMISSION_BINDINGS, name, binding(name), manager=CONTROLLER_MANAGER, force=True)
            self._written, self._last_written_at = encoded_manifest, now
        for policy in self._view.policies.all():
            await self._update_policy_status(policy.metadata.name)
        return _REPEAT_S

    async def _update_policy_status(self, name: str) -> None:
        policy = self._view.policies.get(name)
        if policy is None:
            return
        running_operations = sum(
            1
            for operation in self._view.operations.reflector.objects.values()
            if operation.status.policy == name and operation.status.phase.holds_device
        )
        generation = policy.metadata.generation
        if (policy.status.observed_generation, policy.status.running_operations) == (generation, running_operations):
            return
        status = {"observedGeneration": generation, "runningOperations": running_operations}
        body = {"metadata": {"uid": policy.metadata.uid}, "status": status}
        written_policy = await self._api.apply(
            POLICIES, name, body, manager=CONTROLLER_MANAGER, force=True, subresource="status"
        )
        self._view.policies.record(written_policy)
