"""Holds the workloads of one cluster connection in memory, each with its last seen pod, its relay and its end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar
from weakref import WeakValueDictionary

import msgspec

from ai.backend.common.errors import Unavailable
from ai.backend.common.ids import SessionId
from ai.backend.node.kube_api.objects import Pod
from ai.backend.plugin.runtime import WorkloadExit, WorkloadExited, WorkloadKey, WorkloadState, WorkloadView
from ai.backend.runtime.kubernetes.channel import PodChannel
from ai.backend.runtime.kubernetes.links import Message, PodLink
from ai.backend.runtime.kubernetes.listener import Hello
from ai.backend.runtime.kubernetes.records import RECORD_ANNOTATION, PodRecord, read_record
from ai.backend.runtime.kubernetes.signals import Ended, exit_of, has_ended, is_running, printable
from ai.backend.runtime.kubernetes.statistics import Sample, read_sample
from ai.backend.runtime.kubernetes.streams import PodStream

log = logging.getLogger(__name__)
KILLED_STATUS_WAIT_S = 3.0
"""The seconds that the kubelet may take to report that a killed container ran out of memory."""
_IndexKey = TypeVar("_IndexKey")
OnExit = Callable[[str, WorkloadExited], None]
"""Is called with the node and the exit of a workload that has ended."""


@dataclass(eq=False)
class Handle:
    """Holds the state of one workload. ``pod`` is None once the pod has vanished."""

    record: PodRecord
    uid: str
    pod: Pod | None
    on_exit: OnExit
    link: PodLink | None = None
    channel: PodChannel | None = None
    epoch: int = -1
    reported_end: Ended | None = None
    exit: WorkloadExit | None = None
    reason: str = ""
    failure: str = ""
    has_begun: bool | None = None
    """True once the relay has reported that the runner has begun; None until the relay has reported at all."""
    is_waiting: bool = False
    """The session's first process waits for ``begin``."""
    last_sample: Sample | None = None
    first_seen_at: float = field(default_factory=time.monotonic)
    stream_futures: dict[str, asyncio.Future[PodStream]] = field(default_factory=dict)
    key: WorkloadKey = field(init=False)
    _changes: set[asyncio.Future[None]] = field(default_factory=set)
    _exit_timer: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self.key = self.record.key

    def view(self) -> WorkloadView:
        is_alive = self.pod is not None and is_running(self.pod) and self.has_begun is not False
        state = WorkloadState.RUNNING if is_alive or self.has_begun else WorkloadState.CREATED
        return WorkloadView(
            key=self.key,
            session_id=self.record.session,
            state=state if self.exit is None else WorkloadState.EXITED,
            workload_id=self.uid,
            exit=self.exit,
            labels=dict(self.record.labels),
        )

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Waits until the condition holds after a change of this workload; returns False if it does not in time."""
        if condition():
            return True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while (left_s := deadline - loop.time()) > 0:
            change_future: asyncio.Future[None] = loop.create_future()
            timer = loop.call_later(left_s, _wake, change_future)
            self._changes.add(change_future)
            try:
                await change_future
            finally:
                timer.cancel()
                self._changes.discard(change_future)
            if condition():
                return True
        return False

    def wake_waiters(self) -> None:
        for change_future in self._changes:
            _wake(change_future)

    # ---- the pod

    def update_pod(self, pod: Pod | None) -> None:
        """Stores the newest state of the workload's pod, and records the exit if the pod has ended or has vanished.

        None means that the pod has vanished.
        """
        if pod is not None:
            self.pod = pod
            if has_ended(pod):
                self.record_exit()
        else:
            self.record_exit()
            self.pod = None
        self.wake_waiters()

    def record_exit(self) -> None:
        """Determines the exit from the reports of pod and relay, and announces it once."""
        if self.exit is None:
            self.exit = exit_of(self.pod, self.reported_end, self.reason)
            self.on_exit(self.record.node, WorkloadExited(key=self.key, exit=self.exit))
            for stream_future in self.stream_futures.values():
                if not stream_future.done():
                    stream_future.set_exception(Unavailable("there is no such workload any more"))
        self.wake_waiters()

    # ---- the relay

    def connect_relay(self, hello: Hello) -> PodLink:
        """Replaces the workload's link by one for a new connection of its relay, and returns the new link.

        Closes the older connection.
        """
        link = PodLink(self._on_frame, self._on_lost)
        previous_link, self.link = self.link, link
        if previous_link is not None:
            previous_link.close()
        self.epoch = max(self.epoch, hello.epoch)
        self.has_begun = hello.begun is not None
        self.is_waiting = hello.waiting
        if hello.ended is not None:
            self._on_ended(hello.ended)
        self.wake_waiters()
        return link

    def _on_lost(self, link: PodLink) -> None:
        if self.link is link:
            self.link = None
            if self.channel is not None:
                self.channel.cut()
                self.channel = None
            self.wake_waiters()

    def _on_frame(self, message: Message, size: int) -> None:
        if "seq" in message:
            if self.channel is not None:
                self.channel.receive(message, size)
            return
        message_type = message.get("t")
        if message_type in ("attached", "refused"):
            if self.channel is not None:
                self.channel.receive(message, size)
        elif message_type == "stats":
            self.last_sample = read_sample(message, self.last_sample, time.monotonic()) or self.last_sample
            self.wake_waiters()
        elif message_type == "waiting":
            self.is_waiting = True
            self.wake_waiters()
        elif message_type == "begun":
            self.has_begun = True
            self.wake_waiters()
        elif message_type == "failed":
            self.failure = printable(str(message.get("reason"))[:500])
            self.wake_waiters()
        elif message_type == "ended":
            with suppress(msgspec.ValidationError):
                self._on_ended(msgspec.convert(message, Ended))
        elif message_type == "dial-failed":
            self._fail_dial(message)

    def _on_ended(self, ended: Ended) -> None:
        self.reported_end = ended
        if self.channel is not None:
            self.channel.on_ended(ended.last_seq)
        if self.link is not None:
            with suppress(Unavailable):
                self.link.post({"t": "ended-seen"})
        if self.exit is None and (ended.lost or (ended.signal == 9 and not self.reason and not ended.reason)):
            # The kubelet knows more of a kill than the process that was killed.
            loop = asyncio.get_running_loop()
            self._exit_timer = loop.call_later(KILLED_STATUS_WAIT_S, self._record_kill)
        else:
            self.record_exit()

    def _record_kill(self) -> None:
        """Records the exit of a workload that was killed, if the pod's status has not explained the kill in time.

        The report of a relay that has lost its session does not prove a kill.
        """
        if self.reported_end is not None and not self.reported_end.lost:
            self.record_exit()

    def _fail_dial(self, message: Message) -> None:
        stream_future = self.stream_futures.get(str(message.get("id")))
        if stream_future is not None and not stream_future.done():
            stream_future.set_exception(Unavailable(f"nothing listens there: {str(message.get('reason'))[:200]}"))


def _wake(change_future: asyncio.Future[None]) -> None:
    if not change_future.done():
        change_future.set_result(None)


class Handles:
    """Finds workloads by key, pod, node and session, and creates them from pods."""

    def __init__(self, on_exit: OnExit) -> None:
        self._by_key: dict[WorkloadKey, Handle] = {}
        self._by_uid: dict[str, Handle] = {}
        self._by_node: dict[str, dict[WorkloadKey, Handle]] = {}
        self._by_session: dict[SessionId, dict[WorkloadKey, Handle]] = {}
        self._removed: dict[str, float] = {}
        self._locks: WeakValueDictionary[WorkloadKey, asyncio.Lock] = WeakValueDictionary()
        self._on_exit = on_exit

    def __iter__(self) -> Iterator[Handle]:
        return iter(list(self._by_key.values()))

    def get(self, key: WorkloadKey) -> Handle | None:
        return self._by_key.get(key)

    def of_pod(self, uid: str) -> Handle | None:
        """Returns the workload of the pod with this uid."""
        return self._by_uid.get(uid)

    def on_node(self, node: str) -> list[Handle]:
        return list(self._by_node.get(node, {}).values())

    def of_session(self, session_id: SessionId) -> list[Handle]:
        return list(self._by_session.get(session_id, {}).values())

    def lock(self, key: WorkloadKey) -> asyncio.Lock:
        """Returns the lock of a workload, the same for all its present users."""
        return self._locks.setdefault(key, asyncio.Lock())

    def on_change(self, previous_pod: Pod | None, current_pod: Pod | None) -> None:
        """Handles a change of a pod. Pods that are not ours are ignored."""
        pod = current_pod or previous_pod
        if pod is None or (record := self._record_of(pod)) is None:
            return
        handle = self._by_key.get(record.key)
        if current_pod is None:
            self._removed.pop(pod.metadata.uid, None)
            if handle is not None and handle.uid == pod.metadata.uid:
                if previous_pod is not None:
                    handle.update_pod(previous_pod)
                handle.update_pod(None)
        elif handle is not None and handle.uid == current_pod.metadata.uid:
            handle.update_pod(current_pod)
        else:
            self.adopt(current_pod)

    def adopt(self, pod: Pod) -> Handle | None:
        """Returns the handle of the workload to which a pod belongs, and creates the handle for a new pod.

        Returns None for a pod that is not ours or that we have removed.
        """
        record = self._record_of(pod)
        if record is None or pod.metadata.uid in self._removed:
            return None
        handle = self._by_key.get(record.key)
        if handle is None or handle.uid != pod.metadata.uid:
            if handle is not None:
                self._remove_from_indexes(handle)
            handle = Handle(record, pod.metadata.uid, pod, self._on_exit)
            self._add_to_indexes(handle)
        handle.update_pod(pod)
        return handle

    def _record_of(self, pod: Pod) -> PodRecord | None:
        """Returns the decoded record of a pod, or None for a pod that is not ours.

        A record is decoded once for all states of its pod.
        """
        handle = self._by_uid.get(pod.metadata.uid)
        last_record_text = (
            handle.pod.metadata.annotations.get(RECORD_ANNOTATION) if handle is not None and handle.pod else None
        )
        if (
            handle is not None
            and last_record_text is not None
            and last_record_text == pod.metadata.annotations.get(RECORD_ANNOTATION)
        ):
            return handle.record
        return read_record(pod)

    def _add_to_indexes(self, handle: Handle) -> None:
        self._by_key[handle.key] = self._by_uid[handle.uid] = handle
        self._by_node.setdefault(handle.record.node, {})[handle.key] = handle
        self._by_session.setdefault(handle.record.session, {})[handle.key] = handle

    def _remove_from_indexes(self, handle: Handle) -> None:
        """Removes a workload from every index."""
        del self._by_key[handle.key], self._by_uid[handle.uid]
        _discard_from_index(self._by_node, handle.record.node, handle.key)
        _discard_from_index(self._by_session, handle.record.session, handle.key)

    def forget(self, handle: Handle) -> None:
        """Forgets a workload that was removed, although the cluster may still show its pod for a while."""
        if handle.pod is not None:
            self._removed[handle.uid] = time.monotonic()
        if self._by_key.get(handle.key) is handle:
            self._remove_from_indexes(handle)
        if handle.link is not None:
            handle.link.close()

    def clear(self) -> None:
        for handle in self:
            if handle.link is not None:
                handle.link.close()
        for index in (self._by_key, self._by_uid, self._by_node, self._by_session):
            index.clear()


def _discard_from_index(
    index: dict[_IndexKey, dict[WorkloadKey, Handle]], index_key: _IndexKey, key: WorkloadKey
) -> None:
    """Removes a workload from one place of an index, and the place too if it is empty now."""
    del index[index_key][key]
    if not index[index_key]:
        del index[index_key]
