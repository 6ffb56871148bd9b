"""Creates a workload: makes its claim and pod, and sends environment and files to the pod's relay.

The pod is the record, so that a crash at any instruction leaves one that is found by name or label. The runner begins
last; a pod whose runner never began is of nobody and is removed.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from ai.backend.common.errors import (
    BackendError,
    CreationDeferred,
    CreationDenied,
    DeadlineExceeded,
    Unavailable,
    WorkloadError,
)
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.errors import (
    ApiRefusal,
    Denial,
    NamespaceQuotaExceeded,
    ObjectConflict,
    ObjectExists,
    ObjectInvalid,
    ObjectNotFound,
    RequestDenied,
    ServerFailed,
    TooManyRequests,
)
from ai.backend.node.kube_api.objects import Pod
from ai.backend.node.kube_api.resources import PODS, RESOURCE_CLAIMS, SECRETS
from ai.backend.plugin.crash_points import crash_point
from ai.backend.plugin.runtime import HOME, WorkloadSpec
from ai.backend.runtime import workload
from ai.backend.runtime.kubernetes.claims import compose_claim
from ai.backend.runtime.kubernetes.handles import Handle, Handles
from ai.backend.runtime.kubernetes.homes import Homes
from ai.backend.runtime.kubernetes.manifest import (
    FILES_PLACE,
    HOSTS_PLACE,
    ClusterFacts,
    compose_pod,
    file_directories,
    single_files,
)
from ai.backend.runtime.kubernetes.pull_secrets import (
    compose_pull_secret,
    has_pull_secret_gate,
    needs_pull_secret,
    open_gate,
)
from ai.backend.runtime.kubernetes.records import INSTANCE_LABEL, pod_name
from ai.backend.runtime.kubernetes.settings import KubernetesRuntimeSettings
from ai.backend.runtime.kubernetes.signals import Progress, is_running, progress_of, state_of

log = logging.getLogger(__name__)
POD_DELETION_CHECK_S, POD_DELETION_TIMEOUT_S = 0.2, 30.0
API_RETRY_S = 5.0
API_MARGIN_S = 60.0
"""The additional seconds that a creation may take because the API server is slow."""
_UNCERTAIN_ERRORS = (Unavailable, DeadlineExceeded, ServerFailed)
"""The errors after which a request may have been executed."""


def longest_creation_s(settings: KubernetesRuntimeSettings) -> float:
    """Returns the longest time in seconds that the creation of a workload can take by the settings.

    The time includes the earlier pod's end, bind, pull, start, peers and begin.
    """
    waits_s = settings.schedule_timeout_s + settings.pull_timeout_s + 3 * settings.start_timeout_s
    return POD_DELETION_TIMEOUT_S + waits_s + API_MARGIN_S


class Creation(msgspec.Struct, frozen=True):
    """Creates one workload as a pod on ``node``."""

    spec: WorkloadSpec
    node: str
    settings: KubernetesRuntimeSettings
    facts: ClusterFacts
    api: KubeApi
    handles: Handles
    homes: Homes

    @property
    def name(self) -> str:
        return pod_name(self.spec.key)

    async def run(self) -> Handle:
        """Creates the workload's home, claim and pod, and returns the workload's handle once its runner has begun.

        Raises BackendError; then the caller removes what was created.
        """
        manifest = compose_pod(self.spec, self.settings, self.facts, self.node)
        claim = compose_claim(
            self.name,
            {INSTANCE_LABEL: self.settings.instance},
            self.spec.config.devices,
            self.facts.device_classes,
        )
        await self.homes.ensure(self.spec)
        if claim is not None:
            await self._create_claim(claim)
            crash_point("create.claimed")
        pod = await self._create_pod(manifest)
        crash_point("create.posted")
        handle = self.handles.adopt(pod)
        if handle is None:
            raise WorkloadError("the pod of the workload is being removed")
        if claim is not None:
            await self._give_claim(pod)
        return await self.finish(handle)

    async def finish(self, handle: Handle) -> Handle:
        """Waits until the existing pod is ready, starts its runner unless it has begun, and returns the handle."""
        if handle.pod is not None and has_pull_secret_gate(handle.pod):
            await self._give_pull_secret(handle.pod)
            crash_point("create.credentialed")
        await self._await_relay(handle)
        crash_point("create.linked")
        if not handle.has_begun:
            await self._begin(handle)
        crash_point("create.begun")
        return handle

    # ---- objects

    async def _create_claim(self, claim: Mapping[str, Any]) -> None:
        try:
            await self.api.create(RESOURCE_CLAIMS, claim, self.settings.namespace)
        except ObjectExists:
            return  # of this very attempt: its name is the pod's
        except ObjectNotFound:
            message = "this cluster cannot give devices to pods (it has no resource.k8s.io/v1)"
            raise CreationDenied(message, data={"field": "devices"}) from None
        except ApiRefusal as refusal:
            raise _error_of_refusal(refusal, "the devices") from refusal

    async def _give_claim(self, pod: Pod) -> None:
        """Makes the pod the owner of its ResourceClaim, so that the cluster deletes the claim with the pod.

        A claim without an owner is removed when the runtime removes its pod.
        """
        owner = {"apiVersion": "v1", "kind": "Pod", "name": self.name, "uid": pod.metadata.uid}
        body = {"metadata": {"ownerReferences": [owner]}}
        try:
            await self.api.patch(RESOURCE_CLAIMS, self.name, body, self.settings.namespace)
        except BackendError as error:
            log.warning("the claim %s has no owner yet: %s", self.name, error)

    async def _give_pull_secret(self, pod: Pod) -> None:
        """Creates the Secret with the registry's login for a pod, and then lets the cluster bind the pod to its node.

        The pod owns the Secret from its first moment, so whatever fails here, it ends with the pod.
        """
        request = self.spec.image_request
        if request is None or not needs_pull_secret(self.spec, self.settings):
            message = f"the agent has to ask for the credentials of {self.spec.image} anew"
            raise CreationDeferred(message, retry_after=0.0)
        secret = compose_pull_secret(pod, request, self.settings.instance)
        try:
            with suppress(ObjectExists):  # of this very attempt: its name is the pod's
                await self.api.create(SECRETS, secret, self.settings.namespace)
            await self.api.patch(PODS, self.name, open_gate(pod), self.settings.namespace, kind="strategic")
        except RequestDenied as refusal:
            if refusal.denial is Denial.PERMISSION:
                message = (
                    f"{refusal.message}. The agent gives kubelets the credentials of registries by Secrets: its role"
                    " needs to create them, or its setting runtime.registry-credentials to be none."
                )
                raise CreationDenied(message) from refusal
            raise _error_of_refusal(refusal, "the credentials of the registry") from refusal
        except ApiRefusal as refusal:
            if isinstance(refusal, ObjectNotFound | ObjectConflict):
                raise CreationDeferred("the pod was removed while it started", retry_after=1.0) from refusal
            raise _error_of_refusal(refusal, "the credentials of the registry") from refusal
        except (Unavailable, DeadlineExceeded) as error:
            raise CreationDeferred(f"the cluster cannot be asked: {error}", retry_after=API_RETRY_S) from error

    async def _create_pod(self, manifest: Mapping[str, Any]) -> Pod:
        """Creates the pod, or returns the existing pod of this attempt. Waits until an earlier pod is deleted."""
        deadline = asyncio.get_running_loop().time() + POD_DELETION_TIMEOUT_S
        while True:
            try:
                return await self.api.create(PODS, manifest, self.settings.namespace)
            except ObjectExists:
                pod = await self.api.find(PODS, self.name, self.settings.namespace)
                if pod is not None and not pod.metadata.deletion_timestamp:
                    return pod
                if asyncio.get_running_loop().time() > deadline:
                    message = f"an earlier pod {self.name} does not go away"
                    raise CreationDeferred(message, retry_after=API_RETRY_S) from None
                await asyncio.sleep(POD_DELETION_CHECK_S)  # the create request itself tells when it is gone
            except ApiRefusal as refusal:
                if not isinstance(refusal, _UNCERTAIN_ERRORS):
                    raise _error_of_refusal(refusal, "the pod") from refusal
                return await self._find_uncertain(refusal)
            except (Unavailable, DeadlineExceeded) as error:
                return await self._find_uncertain(error)

    async def _find_uncertain(self, error: BackendError) -> Pod:
        """Looks for the workload's pod after a creation request without an answer, and returns the pod.

        Raises CreationDeferred if no pod is found.
        """
        try:
            pod = await self.api.find(PODS, self.name, self.settings.namespace)
        except BackendError:
            pod = None
        if pod is None:
            raise CreationDeferred(f"the cluster cannot be asked: {error}", retry_after=API_RETRY_S) from error
        return pod

    # ---- the start

    async def _await_relay(self, handle: Handle) -> None:
        """Waits until the first process in the pod is ready for the command ``begin``, or the runner has begun.

        Raises CreationDeferred if a phase of the pod's start exceeds its time limit, and the error of a start that
        failed.
        """
        loop = asyncio.get_running_loop()
        deadline_by_phase: dict[str, float] = {}
        timeouts_s = {
            "bind": self.settings.schedule_timeout_s,
            "pull": self.settings.pull_timeout_s,
            "start": self.settings.start_timeout_s,
        }
        while not (handle.is_waiting or handle.has_begun):
            progress = progress_of(handle.pod) if handle.pod is not None else Progress()
            if progress.error is not None:
                raise progress.error
            if handle.exit is not None or handle.pod is None:
                raise _early_end_error(handle)
            now, phase = loop.time(), _phase_of(handle.pod)
            deadline = deadline_by_phase.setdefault(phase, now + timeouts_s[phase])
            if now >= deadline:
                raise CreationDeferred(f"the pod does not start: {progress.message}", retry_after=1.0)
            previous_pod = handle.pod
            await handle.wait_until(lambda: _has_news(handle, previous_pod), deadline - now)  # noqa: B023  # awaited here

    async def _begin(self, handle: Handle) -> None:
        link = handle.link
        if link is None:
            raise CreationDeferred("the relay of the session was lost before it began", retry_after=0.0)
        try:
            files = self._file_messages()
            if self.spec.network is not None:
                files.append(_file_message(HOSTS_PLACE, "hosts", await self._hosts_file(), False))
            crash_point("create.placed")
            environ = workload.environment(self.spec, _DEFAULT_VARIABLES, {"HOME": HOME})
            begin_request = {"t": "begin", "environ": environ, "stats_interval": self.settings.stats_interval_s}
            await link.send(*files, begin_request)
        except Unavailable as error:
            raise CreationDeferred(f"the relay of the session was lost: {error}", retry_after=0.0) from error
        has_begun_or_failed = await handle.wait_until(
            lambda: bool(handle.has_begun or handle.failure) or handle.exit is not None, self.settings.start_timeout_s
        )
        if handle.failure:
            raise WorkloadError(f"the session cannot begin: {handle.failure}")
        if handle.exit is not None and not handle.has_begun:
            raise _early_end_error(handle)
        if not has_begun_or_failed:
            raise WorkloadError("the first process of the session does not answer")

    def _file_messages(self) -> list[dict[str, Any]]:
        directories = file_directories(self.spec.files)
        names_of_single_files = single_files(self.spec)
        messages: list[dict[str, Any]] = []
        for target, content in self.spec.files.items():
            is_private = target in self.spec.private_files
            if target.startswith(HOME + "/"):
                messages.append(_file_message("home", target.removeprefix(HOME + "/"), content, is_private))
                continue
            if target in names_of_single_files:
                messages.append(_file_message(HOSTS_PLACE, names_of_single_files[target], content, is_private))
                continue
            top_directory = next(
                top_directory for top_directory in directories if target.startswith(f"{top_directory}/")
            )
            path = f"{directories[top_directory]}/{target.removeprefix(top_directory + '/')}"
            messages.append(_file_message(FILES_PLACE, path, content, is_private))
        return messages

    async def _hosts_file(self) -> bytes:
        """Waits until all pods of a cluster session have addresses, and returns its /etc/hosts (D13)."""
        network = self.spec.network
        assert network is not None
        hosts = frozenset(network.addresses)
        deadline = asyncio.get_running_loop().time() + self.settings.start_timeout_s
        while True:
            addresses = addresses_of_session(self.handles, self.spec)
            if hosts <= addresses.keys():
                break
            if asyncio.get_running_loop().time() > deadline:
                missing_hosts = ", ".join(sorted(hosts - addresses.keys()))
                raise CreationDeferred(f"kernels of the session do not start: {missing_hosts}", retry_after=1.0)
            await asyncio.sleep(_ADDRESS_CHECK_S)
        own_address = addresses[self.spec.hostname]
        lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost", f"{own_address} {self.spec.hostname}"]
        lines += [f"{address} {host}" for host, address in sorted(addresses.items()) if host != self.spec.hostname]
        return ("\n".join(lines) + "\n").encode()


_ADDRESS_CHECK_S = 0.02
_DEFAULT_VARIABLES = {"LANG": "C.UTF-8", "TERM": "xterm-256color", "TMPDIR": "/tmp"}


def addresses_of_session(handles: Handles, spec: WorkloadSpec) -> dict[str, str]:
    """Maps the host names of a session to the known addresses of its pods."""
    network = spec.network.network_id if spec.network is not None else ""
    return {
        handle.record.hostname: handle.pod.status.pod_ip
        for handle in handles.of_session(spec.session_id)
        if handle.record.network == network
        and handle.exit is None
        and handle.pod is not None
        and handle.pod.status.pod_ip
    }


def _has_news(handle: Handle, previous_pod: Pod | None) -> bool:
    return bool(handle.is_waiting or handle.has_begun or handle.exit is not None or handle.pod is not previous_pod)


def _phase_of(pod: Pod) -> str:
    """Returns the phase of a pod's start: ``bind`` without a node, ``pull`` until the container runs, or ``start``."""
    if not pod.spec.node_name:
        return "bind"
    return "start" if is_running(pod) else "pull"


def _file_message(place_name: str, path: str, content: bytes, is_private: bool) -> dict[str, Any]:
    data = base64.b64encode(content).decode()
    return {"t": "file", "place": place_name, "path": path, "data": data, "private": is_private}


def _early_end_error(handle: Handle) -> BackendError:
    if handle.pod is None:
        return CreationDeferred("the pod was removed while it started", retry_after=1.0)
    workload_exit = handle.exit
    exit_text = (
        "it said nothing"
        if workload_exit is None
        else (workload_exit.reason or f"exit code {workload_exit.code}, signal {workload_exit.signal}")
    )
    if workload_exit is not None and workload_exit.reason in (
        "container-removed",
        "node-drained",
        "agent-lost",
        "preempted",
    ):
        message = f"the pod was ended while it started: {exit_text} ({state_of(handle.pod)})"
        return CreationDeferred(message, retry_after=1.0)
    return WorkloadError(f"the container ended at once: {exit_text}")


def _error_of_refusal(refusal: ApiRefusal, object_name: str) -> BackendError:
    """Converts the API server's refusal to create an object into CreationDeferred or CreationDenied.

    The error is CreationDeferred if a later attempt may succeed.
    """
    if isinstance(refusal, NamespaceQuotaExceeded | TooManyRequests):
        return CreationDeferred(
            f"{object_name} must wait: {refusal.message}", retry_after=refusal.retry_after_s or API_RETRY_S
        )
    if isinstance(refusal, RequestDenied | ObjectInvalid):
        return CreationDenied(f"the cluster refuses {object_name}: {refusal.message}")
    if isinstance(refusal, ObjectNotFound):
        return CreationDenied(
            f"the cluster refuses {object_name}: {refusal.message}; is there the namespace of sessions?"
        )
    return CreationDeferred(f"the cluster does not take {object_name}: {refusal.message}", retry_after=API_RETRY_S)
