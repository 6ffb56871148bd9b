"""Stores the home directories of kernels in PersistentVolumeClaims, so that homes outlive a restart.

There is one for each kernel and node, where the settings say so (D16).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import Any

from ai.backend.common.errors import BackendError, CreationDeferred, CreationDenied
from ai.backend.common.ids import KernelId
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.errors import (
    ApiRefusal,
    NamespaceQuotaExceeded,
    ObjectConflict,
    ObjectExists,
    ObjectInvalid,
    RequestDenied,
)
from ai.backend.node.kube_api.objects import KubeObject
from ai.backend.node.kube_api.resources import VOLUME_CLAIMS
from ai.backend.plugin.runtime import WorkloadSpec
from ai.backend.runtime.kubernetes.records import INSTANCE_LABEL, NODE_ANNOTATION
from ai.backend.runtime.kubernetes.settings import KubernetesRuntimeSettings

ATTEMPT_ANNOTATION = "backend.ai/attempt"
"""The attempt that made the home. The home is removed with it if its creation fails."""
HOME_DELETION_CHECK_S, HOME_DELETION_TIMEOUT_S, RETRY_S = 0.2, 30.0, 5.0


def home_name(kernel_id: KernelId, node: str) -> str:
    """Returns the name of the PersistentVolumeClaim with a kernel's home on a node.

    Names differ by node, since the volume may be bound to its node.
    """
    return f"h-{kernel_id.hex}-{sha256(node.encode()).hexdigest()[:8]}"


class Homes:
    """Makes and removes the claims of the kernels' homes on one node; does nothing where homes end with their pods."""

    def __init__(self, api: KubeApi, settings: KubernetesRuntimeSettings, node: str) -> None:
        self._api = api
        self._settings = settings
        self._node = node

    @property
    def are_kept(self) -> bool:
        return self._settings.home_volume == "claim"

    async def ensure(self, spec: WorkloadSpec) -> None:
        """Makes the home of a kernel, or reuses the home of an earlier attempt if ``keep_home`` is set.

        Raises CreationDeferred while an earlier one goes away or the quota is used up, CreationDenied if the cluster
        refuses it.
        """
        if not self.are_kept:
            return
        if not spec.keep_home:
            await self.remove(spec.key.kernel_id, if_=lambda claim: _attempt_of(claim) != spec.key.attempt)
        deadline = asyncio.get_running_loop().time() + HOME_DELETION_TIMEOUT_S
        while True:
            try:
                await self._api.create(VOLUME_CLAIMS, self._manifest(spec), self._settings.namespace)
            except ObjectExists:
                name = home_name(spec.key.kernel_id, self._node)
                claim = await self._api.find(VOLUME_CLAIMS, name, self._settings.namespace)
                if claim is not None and not claim.metadata.deletion_timestamp:
                    return
                if asyncio.get_running_loop().time() > deadline:
                    raise CreationDeferred(f"an earlier home {name} does not go away", retry_after=RETRY_S) from None
                await asyncio.sleep(HOME_DELETION_CHECK_S)  # the create request itself tells when it is gone
            except NamespaceQuotaExceeded as refusal:
                raise CreationDeferred(f"the home must wait: {refusal.message}", retry_after=RETRY_S) from refusal
            except (RequestDenied, ObjectInvalid) as refusal:
                raise CreationDenied(f"the cluster refuses the home: {refusal.message}") from refusal
            except ApiRefusal as refusal:
                message = f"the cluster does not take the home: {refusal.message}"
                raise CreationDeferred(message, retry_after=RETRY_S) from refusal
            else:
                return

    async def undo(self, spec: WorkloadSpec) -> None:
        """Removes the home that this attempt's failed creation has made; a home of an earlier attempt stays.

        The next attempt may be on another node.
        """
        with suppress(BackendError):
            await self.remove(spec.key.kernel_id, if_=lambda claim: _attempt_of(claim) == spec.key.attempt)

    async def remove(self, kernel_id: KernelId, *, if_: Callable[[KubeObject], bool] = lambda _: True) -> None:
        """Removes the home of a kernel, once no pod uses it any more. Raises BackendError."""
        if not self.are_kept:
            return
        name, namespace = home_name(kernel_id, self._node), self._settings.namespace
        claim = await self._api.find(VOLUME_CLAIMS, name, namespace)
        if claim is not None and if_(claim):
            with suppress(ObjectConflict):  # it is another one by now
                await self._api.delete(VOLUME_CLAIMS, name, namespace, uid=claim.metadata.uid)

    def _manifest(self, spec: WorkloadSpec) -> dict[str, Any]:
        size = str(spec.home_bytes or self._settings.home_bytes)
        body: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
        if self._settings.home_storage_class:
            body["storageClassName"] = self._settings.home_storage_class
        metadata = {
            "name": home_name(spec.key.kernel_id, self._node),
            "labels": {INSTANCE_LABEL: self._settings.instance, "app.kubernetes.io/managed-by": "backend.ai"},
            "annotations": {ATTEMPT_ANNOTATION: str(spec.key.attempt), NODE_ANNOTATION: self._node},
        }
        return {"metadata": metadata, "spec": body}


def _attempt_of(claim: KubeObject) -> int | None:
    attempt_text = claim.metadata.annotations.get(ATTEMPT_ANNOTATION, "")
    return int(attempt_text) if attempt_text.isascii() and attempt_text.isdigit() else None
