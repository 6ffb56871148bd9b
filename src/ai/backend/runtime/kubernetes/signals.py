"""Interprets the status of a pod: why its workload waits, why it cannot start, how it ended.

Only the status counts; events of the cluster are best effort and are never decided on.
"""

from __future__ import annotations

import re
import signal
from enum import StrEnum
from typing import Annotated

import msgspec

from ai.backend.common.errors import BackendError, CreationDeferred, CreationDenied, ImageMissing
from ai.backend.node.kube_api.objects import Condition, ContainerStatus, Pod, StateTerminated
from ai.backend.plugin.runtime import WorkloadExit
from ai.backend.runtime.kubernetes.records import MAIN_CONTAINER, PREPARE_CONTAINER, RELAY_CONTAINER

NODE_EXCLUSION_S = 30.0
"""How long a node that refused a pod after its binding is better left alone: its device plug-ins come back."""
MAX_SIGNAL = 64
MAX_MESSAGE_CHARS = 500
MAX_EXIT_CODE = 255
_MAX_REASON_CHARS = 64
_PLATFORM_REASONS = frozenset({"stopped", "removed"})
"""The reasons that the runtime may give a session's first process when it orders the end."""
_VIOLATION_PREFIX = "protocol-violation"
_UNPRINTABLE_PATTERN = re.compile(r"[^\x20-\x7e]")


class Verdict(StrEnum):
    """Classifies why a container waits: it may start, its image is missing, or it is denied or deferred."""

    WAIT = "wait"
    MISSING = "missing"
    """The image cannot be pulled, however often it is tried."""
    DENIED = "denied"
    DEFERRED = "deferred"


WAITING_VERDICTS = {
    "PodInitializing": Verdict.WAIT,
    "ContainerCreating": Verdict.WAIT,
    "ErrImagePull": Verdict.WAIT,
    "ImagePullBackOff": Verdict.WAIT,
    "RegistryUnavailable": Verdict.WAIT,
    "InvalidImageName": Verdict.MISSING,
    "ErrImageNeverPull": Verdict.MISSING,
    "ImageInspectError": Verdict.DENIED,
    "SignatureValidationFailed": Verdict.DENIED,
    "CreateContainerConfigError": Verdict.DENIED,
    "CreateContainerError": Verdict.DEFERRED,
    "RunContainerError": Verdict.DENIED,
    "CrashLoopBackOff": Verdict.DEFERRED,
}
"""By the kubelet's reason (its ``images/types.go``, ``container/sync_result.go``); others are waited for."""
_PULL_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"})
_FATAL_PULL_WORDS = (
    "not found",
    "manifest unknown",
    "unauthorized",
    "authorization failed",
    "access denied",
    "pull access denied",
    "403 forbidden",
    "invalid reference format",
    "no match for platform",
)
REJECTION_PREFIXES = (
    "OutOf",
    "UnexpectedAdmissionError",
    "NodeAffinity",
    "TopologyAffinityError",
    "NodeShutdown",
    "Terminated",
)
"""Beginnings of the reasons with which a kubelet refuses a pod that was bound to it."""
REASON_BY_DISRUPTION = {
    "PreemptionByScheduler": "preempted",
    "EvictionByEvictionAPI": "node-drained",
    "DeletionByTaintManager": "agent-lost",
    "DeletionByDeviceTaintManager": "device-failed",
    "DeletionByPodGC": "agent-lost",
    "TerminationByKubelet": "evicted",
}
"""Maps the reason of the condition DisruptionTarget to the reason of the exit."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Describes how far the start of a pod has come: an error, a message for users, and True for a pull under way.

    ``error`` is why the pod cannot start; None while it may. ``message`` is why the pod waits.
    """

    message: str = ""
    error: BackendError | None = None
    is_pulling: bool = False


def progress_of(pod: Pod) -> Progress:
    """Returns the progress of a pod's start, also for a pod that has ended already."""
    if pod.status.phase == "Failed" and (error := _rejection_error(pod)) is not None:
        return Progress(error=error)
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        if (terminated := status.state.terminated) is not None and (error := _start_error(status, terminated)):
            return Progress(error=error)
        if (waiting := status.state.waiting) is not None and waiting.reason:
            verdict = WAITING_VERDICTS.get(waiting.reason, Verdict.WAIT)
            waiting_text = f"{waiting.reason}: {waiting.message}"[:MAX_MESSAGE_CHARS].rstrip(": ")
            if waiting.reason in _PULL_REASONS and any(
                fatal_word in waiting.message.lower() for fatal_word in _FATAL_PULL_WORDS
            ):
                verdict = Verdict.MISSING
            if verdict is not Verdict.WAIT:
                return Progress(error=_error_of(verdict, status.name, waiting_text))
            if waiting.reason not in ("PodInitializing", "ContainerCreating"):
                return Progress(message=waiting_text, is_pulling=waiting.reason in _PULL_REASONS)
    scheduled_condition = condition_of(pod, "PodScheduled")
    if scheduled_condition is not None and scheduled_condition.status == "False":
        return Progress(message=f"the cluster does not bind the pod: {scheduled_condition.message}"[:MAX_MESSAGE_CHARS])
    return Progress(message="the node prepares the pod" if pod.spec.node_name else "the pod waits for its node")


def _error_of(verdict: Verdict, container: str, reason_text: str) -> BackendError:
    if container in (RELAY_CONTAINER, PREPARE_CONTAINER):
        return CreationDeferred(
            f"the relay of the session cannot be started: {reason_text}", retry_after=NODE_EXCLUSION_S
        )
    if verdict is Verdict.MISSING:
        return ImageMissing(f"the node cannot have the image: {reason_text}")
    if verdict is Verdict.DENIED:
        return CreationDenied(f"the node cannot make the container: {reason_text}")
    return CreationDeferred(f"the node cannot make the container now: {reason_text}", retry_after=NODE_EXCLUSION_S)


def _rejection_error(pod: Pod) -> BackendError | None:
    reason, main_status = pod.status.reason, container_status(pod)
    if reason.startswith(REJECTION_PREFIXES) and (main_status is None or _never_ran(main_status)):
        message = f"the node refused the pod: {reason or 'Failed'}: {pod.status.message}"[:MAX_MESSAGE_CHARS]
        return CreationDeferred(message, retry_after=NODE_EXCLUSION_S)
    return None


def _never_ran(status: ContainerStatus) -> bool:
    return status.state.running is None and status.state.terminated is None


def _start_error(status: ContainerStatus, terminated: StateTerminated) -> BackendError | None:
    """Returns the error of a container that did not start, since its program is missing or its preparation failed.
    Returns None for any other end.
    """
    failure_text = f"{terminated.reason}: {terminated.message}"[:MAX_MESSAGE_CHARS].rstrip(": ")
    if status.name == MAIN_CONTAINER and terminated.reason in ("StartError", "ContainerCannotRun"):
        return CreationDenied(f"the image cannot run here: {failure_text}")
    if status.name == PREPARE_CONTAINER and terminated.exit_code:
        return CreationDeferred(f"the pod cannot be prepared: {failure_text}", retry_after=NODE_EXCLUSION_S)
    return None


def state_of(pod: Pod) -> str:
    """Returns a text that describes a pod's phase, deletion time and containers, for messages and logs."""
    state_texts = [pod.status.phase or "no phase", pod.status.reason]
    state_texts += [f"deleted at {pod.metadata.deletion_timestamp}"] if pod.metadata.deletion_timestamp else []
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        if (terminated := status.state.terminated) is not None:
            state = f"terminated with {terminated.signal or terminated.exit_code} {terminated.reason}"
        elif (waiting := status.state.waiting) is not None:
            state = f"waiting {waiting.reason}"
        else:
            state = "running" if status.state.running is not None else "in no state"
        state_texts.append(f"{status.name} {state.rstrip()}")
    return ", ".join(filter(None, state_texts))[:MAX_MESSAGE_CHARS]


def container_status(pod: Pod, name: str = MAIN_CONTAINER) -> ContainerStatus | None:
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    return next((status for status in statuses if status.name == name), None)


def condition_of(pod: Pod, kind: str) -> Condition | None:
    return next((condition for condition in pod.status.conditions if condition.type == kind), None)


def is_running(pod: Pod) -> bool:
    """Returns True while the session's container runs."""
    status = container_status(pod)
    return status is not None and status.state.running is not None


def has_ended(pod: Pod) -> bool:
    """Returns True once no process of the session can run any more."""
    status = container_status(pod)
    if status is not None and status.state.terminated is not None:
        return True
    return pod.status.phase in ("Failed", "Succeeded") or is_node_gone(pod)


def is_node_gone(pod: Pod) -> bool:
    """Returns True if the cluster has given the node up: it was removed, or declared out of service."""
    disruption = condition_of(pod, "DisruptionTarget")
    return disruption is not None and disruption.status == "True" and disruption.reason == "DeletionByPodGC"


def printable(text: str) -> str:
    """Replaces the characters of a text that a database or terminal may refuse.

    The text comes from a user's program.
    """
    return _UNPRINTABLE_PATTERN.sub("?", text)


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the end of a session as its first process reports it, over the relay or in its last message.

    That process may be a program of the user's image (its ``python3``), so each field is bounded, and of ``reason``
    only :attr:`own_reason` counts.
    """

    code: Annotated[int, msgspec.Meta(ge=0, le=MAX_EXIT_CODE)] | None = None
    signal: Annotated[int, msgspec.Meta(ge=1, le=MAX_SIGNAL)] | None = None
    oom: bool = False
    reason: str = ""
    lost: bool = False
    last_seq: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0

    @property
    def own_reason(self) -> str:
        """The reported reason if the platform defines it; empty for a reason that a user's program invented."""
        reason = self.reason[:_MAX_REASON_CHARS]
        if reason in _PLATFORM_REASONS:
            return reason
        return printable(reason) if reason.startswith(_VIOLATION_PREFIX) else ""


def end_of_termination_message(terminated: StateTerminated) -> Ended | None:
    """Returns the session's end that the first process wrote into the termination message of its container.

    The session's user can write there too, so an end that does not fit the container's exit code is ignored.
    """
    try:
        reported_end = msgspec.json.decode(terminated.message.encode(), type=Ended)
    except msgspec.MsgspecError:
        return None
    expected_code = 128 + reported_end.signal if reported_end.signal is not None else reported_end.code
    return reported_end if expected_code == terminated.exit_code else None


def exit_of(pod: Pod | None, reported_end: Ended | None, reason: str) -> WorkloadExit:
    """Returns the exit of a workload that has ended.

    Args:
        pod: as it was last seen; None if it vanished unseen.
        told: by the first process over the relay.
        reason: the runtime's own reason to end it, if any.
    """
    status = container_status(pod) if pod is not None else None
    terminated = status.state.terminated if status is not None else None
    if reported_end is None or reported_end.lost:
        reported_end = end_of_termination_message(terminated) if terminated is not None else None
    code, signal_number = (reported_end.code, reported_end.signal) if reported_end is not None else _code_of(terminated)
    is_oom = (terminated is not None and terminated.reason == "OOMKilled") or (
        reported_end is not None and reported_end.oom
    )
    is_oom = is_oom and signal_number == signal.SIGKILL
    if not reason:
        reason = (
            (reported_end.own_reason if reported_end is not None else "")
            or ("out-of-memory" if is_oom else "")
            or _reason_from_cluster(pod)
        )
    return WorkloadExit(code=code if signal_number is None else None, signal=signal_number, oom=is_oom, reason=reason)


def _code_of(terminated: StateTerminated | None) -> tuple[int | None, int | None]:
    """Returns (exit code, signal) of an ended container, one of which is None.

    The reaper and the engine report the death by signal n as code 128 + n.
    """
    if terminated is None:
        return None, int(signal.SIGKILL)
    if terminated.signal:
        return None, terminated.signal
    if 128 < terminated.exit_code <= 128 + MAX_SIGNAL:
        return None, terminated.exit_code - 128
    return terminated.exit_code, None


def _reason_from_cluster(pod: Pod | None) -> str:
    """Returns the reason of an end that the cluster caused. Returns an empty text if the session ended by itself."""
    if pod is None:
        return "container-removed"
    disruption = condition_of(pod, "DisruptionTarget")
    if disruption is not None and disruption.status == "True":
        return REASON_BY_DISRUPTION.get(disruption.reason, "node-drained")
    if pod.status.reason == "Evicted":
        return "home-limit" if "volume" in pod.status.message or "ephemeral" in pod.status.message else "evicted"
    return "container-removed" if pod.metadata.deletion_timestamp else ""
