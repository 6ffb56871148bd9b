"""Workloads are found by key, pod, node and session, and by none of them once they are forgotten or replaced."""

from __future__ import annotations

import asyncio
from uuid import UUID

import msgspec
import pytest

from ai.backend.common.ids import KernelId, SessionId
from ai.backend.common.structs import replace
from ai.backend.node.kube_api.objects import Pod
from ai.backend.plugin.runtime import WorkloadExited, WorkloadKey
from ai.backend.runtime.kubernetes.handles import Handles
from ai.backend.runtime.kubernetes.records import RECORD_ANNOTATION, PodRecord, encode_record, pod_name

FIRST, SECOND = SessionId(UUID(int=100)), SessionId(UUID(int=200))


def pod(kernel: int, *, session: SessionId = FIRST, node: str = "a", uid: str = "") -> Pod:
    record = PodRecord(kernel_id=UUID(int=kernel), attempt=1, session_id=session, node=node)
    metadata = {
        "name": pod_name(record.key),
        "uid": uid or f"uid-{kernel}",
        "annotations": {RECORD_ANNOTATION: encode_record(record)},
    }
    return msgspec.convert({"metadata": metadata}, Pod)


def key(kernel: int) -> WorkloadKey:
    return WorkloadKey(kernel_id=KernelId(UUID(int=kernel)), attempt=1)


@pytest.fixture
def handles() -> Handles:
    exits: list[tuple[str, WorkloadExited]] = []
    handles = Handles(lambda node, event: exits.append((node, event)))
    for number, (session, node) in enumerate(((FIRST, "a"), (FIRST, "b"), (SECOND, "a"))):
        handles.on_change(None, pod(number, session=session, node=node))
    return handles


def keys_of(handles: Handles) -> dict[str, set[WorkloadKey]]:
    return {
        "all": {handle.key for handle in handles},
        "a": {handle.key for handle in handles.on_node("a")},
        "b": {handle.key for handle in handles.on_node("b")},
        "first": {handle.key for handle in handles.of_session(FIRST)},
        "second": {handle.key for handle in handles.of_session(SECOND)},
    }


def test_every_index_holds_the_same_workloads(handles: Handles) -> None:
    assert keys_of(handles) == {
        "all": {key(0), key(1), key(2)},
        "a": {key(0), key(2)},
        "b": {key(1)},
        "first": {key(0), key(1)},
        "second": {key(2)},
    }
    assert [handles.of_pod(f"uid-{number}") is handles.get(key(number)) for number in range(3)] == [True] * 3


def test_a_workload_that_is_forgotten_is_in_no_index(handles: Handles) -> None:
    handle = handles.get(key(2))
    assert handle is not None
    handles.forget(handle)
    handles.forget(handle)
    assert handles.of_pod("uid-2") is None
    assert keys_of(handles) == {
        "all": {key(0), key(1)},
        "a": {key(0)},
        "b": {key(1)},
        "first": {key(0), key(1)},
        "second": set(),
    }


def test_a_pod_that_replaces_another_takes_its_place(handles: Handles) -> None:
    handles.on_change(None, pod(0, session=SECOND, node="b", uid="other"))
    assert handles.of_pod("uid-0") is None
    replacement = handles.of_pod("other")
    assert replacement is not None
    assert replacement is handles.get(key(0))
    assert keys_of(handles)["a"] == {key(2)}
    assert keys_of(handles)["second"] == {key(0), key(2)}


def test_nothing_is_left_after_clear(handles: Handles) -> None:
    handles.clear()
    assert not any(keys_of(handles).values())
    assert handles.of_pod("uid-0") is None


def test_the_record_of_a_pod_is_decoded_once_for_all_its_states(
    handles: Handles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ai.backend.runtime.kubernetes.handles.read_record", lambda pod: pytest.fail("decoded again"))
    handle = handles.get(key(0))
    handles.on_change(pod(0), later := pod(0, session=FIRST))
    assert handle is not None
    assert handle.pod is later


def test_a_pod_whose_record_was_taken_away_is_none_of_ours(handles: Handles) -> None:
    handle = handles.get(key(0))
    assert handle is not None
    bare = replace(pod(0), metadata=replace(pod(0).metadata, annotations={}))
    handles.on_change(pod(0), bare)
    assert handle.pod is not bare


async def test_a_wait_ends_with_the_change_that_fulfils_its_condition(handles: Handles) -> None:
    handle = handles.get(key(0))
    assert handle is not None
    assert await handle.wait_until(lambda: True, 0.0)
    assert not await handle.wait_until(lambda: False, 0.0)
    waiting = asyncio.ensure_future(handle.wait_until(lambda: handle.is_waiting, 60.0))
    for is_waiting in (False, True):
        await asyncio.sleep(0)  # the wait begins; it has no event for this
        handle.is_waiting = is_waiting
        handle.wake_waiters()
    assert await waiting
