"""A reflector's copy follows the server through cut lines, silence, forgotten versions and replaced objects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from ai.backend.common.errors import Unavailable
from ai.backend.node.kube_api.decoding import Undecodable
from ai.backend.node.kube_api.errors import ObjectInvalid, VersionExpired
from ai.backend.node.kube_api.objects import Node, ObjectMeta
from ai.backend.node.kube_api.reflector import Reflector
from ai.backend.node.kube_api.resources import NODES
from ai.backend.simulator.world import NO_FAULTS, World
from tests.support.scripted_kube import HANG, ScriptedKube, Step

Change = tuple[str | None, str | None]


def frame(kind: str, name: str, version: int, uid: str = "") -> bytes:
    metadata = {"name": name, "uid": uid or name, "resourceVersion": str(version)}
    return json.dumps({"type": kind, "object": {"kind": "Node", "metadata": metadata}}).encode() + b"\n"


def bookmark(version: int, *, is_end: bool = False) -> bytes:
    annotations = {"k8s.io/initial-events-end": "true"} if is_end else {}
    metadata = {"resourceVersion": str(version), "annotations": annotations}
    return json.dumps({"type": "BOOKMARK", "object": {"kind": "Node", "metadata": metadata}}).encode() + b"\n"


def node(name: str, version: int) -> Node:
    return Node(metadata=ObjectMeta(name=name, uid=name, resource_version=str(version)))


LISTED = [frame("ADDED", "n1", 5), frame("ADDED", "n2", 6), bookmark(9, is_end=True)]


@pytest.fixture
def simulate() -> Callable[[Coroutine[Any, Any, None]], None]:
    def run(story: Coroutine[Any, Any, None]) -> None:
        world = World(1, NO_FAULTS)
        world.loop.run_until_complete(world.spawn(None, story))
        world.loop.tear_down()

    return run


async def reflected(
    kube: ScriptedKube, seconds: float = 1000.0, **options: Any
) -> tuple[Reflector[Node], list[Change]]:
    """Runs a reflector through the scripts."""
    changes: list[Change] = []

    def record(before: Node | None, after: Node | None) -> None:
        changes.append((before.metadata.uid if before else None, after.metadata.uid if after else None))

    reflector = Reflector(kube.api, NODES, on_change=record, label_selector="pool=a", **options)
    task = asyncio.ensure_future(reflector.run())
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await kube.exhausted.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return reflector, changes


def test_the_present_objects_are_streamed_and_the_same_connection_tells_changes(simulate: Any) -> None:
    async def story() -> None:
        kube = ScriptedKube([*LISTED, frame("MODIFIED", "n2", 10), frame("DELETED", "n1", 11)])
        reflector, changes = await reflected(kube)
        assert set(reflector.objects) == {("", "n2")}
        assert changes == [(None, "n1"), (None, "n2"), ("n2", "n2"), ("n1", None)]
        assert [query.get("resourceVersion") for query in kube.queries] == [None, "11"]
        assert kube.queries[0]["sendInitialEvents"] == "true"
        assert kube.queries[0]["labelSelector"] == "pool=a"
        assert reflector.lists == 1

    simulate(story())


def test_a_cut_connection_continues_at_the_last_version_and_a_cut_line_counts_not(simulate: Any) -> None:
    async def story() -> None:
        cut: list[Step] = [*LISTED, bookmark(50), frame("ADDED", "n3", 51)[:40], Unavailable("cut")]
        kube = ScriptedKube(cut, [frame("ADDED", "n3", 51)])
        reflector, changes = await reflected(kube)
        assert [query.get("resourceVersion") for query in kube.queries] == [None, "50", "51"]
        assert changes.count((None, "n3")) == 1
        assert reflector.lists == 1

    simulate(story())


def test_a_forgotten_version_lists_anew_and_tells_what_went_meanwhile(simulate: Any) -> None:
    async def story() -> None:
        again = [frame("ADDED", "n2", 6), frame("ADDED", "n4", 70), bookmark(80, is_end=True)]
        kube = ScriptedKube(LISTED, [VersionExpired("too old")], again)
        reflector, changes = await reflected(kube)
        assert set(reflector.objects) == {("", "n2"), ("", "n4")}
        assert changes[2:] == [("n1", None), (None, "n4")]
        assert reflector.lists == 2

    simulate(story())


def test_silence_ends_a_watch_that_nobody_closed(simulate: Any) -> None:
    async def story() -> None:
        started_at = asyncio.get_running_loop().time()
        kube = ScriptedKube([*LISTED, HANG], [bookmark(20)])
        reflector, _ = await reflected(kube)
        assert 90 <= asyncio.get_running_loop().time() - started_at < 100
        assert reflector.failure == ""
        assert reflector.lists == 1

    simulate(story())


def test_a_server_that_streams_no_lists_is_asked_for_pages(simulate: Any) -> None:
    async def story() -> None:
        kube = ScriptedKube([ObjectInvalid("sendInitialEvents is forbidden")], [frame("ADDED", "n2", 31)])
        kube.lists = [([node("n1", 5)], "30")]
        reflector, changes = await reflected(kube)
        assert changes == [(None, "n1"), (None, "n2")]
        assert kube.queries[1]["resourceVersion"] == "30"
        assert reflector.synced.is_set()

    simulate(story())


def test_a_streamed_list_that_stays_silent_is_read_in_pages(simulate: Any) -> None:
    async def story() -> None:
        started_at = asyncio.get_running_loop().time()
        kube = ScriptedKube([frame("ADDED", "n1", 5), HANG], [frame("ADDED", "n2", 31)])
        kube.lists = [([node("n1", 5)], "30")]
        _, changes = await reflected(kube, seconds=60.0)
        assert changes == [(None, "n1"), (None, "n2")]
        assert asyncio.get_running_loop().time() - started_at < 40
        assert [query.get("resourceVersion") for query in kube.queries] == [None, "30", "31"]

    simulate(story())


def test_an_incomplete_list_changes_nothing(simulate: Any) -> None:
    async def story() -> None:
        kube = ScriptedKube([frame("ADDED", "n9", 1), Unavailable("cut")], LISTED)
        reflector, changes = await reflected(kube)
        assert changes == [(None, "n1"), (None, "n2")]
        assert reflector.lists == 1

    simulate(story())


def test_an_object_that_replaced_another_is_removed_and_added(simulate: Any) -> None:
    async def story() -> None:
        again = [frame("ADDED", "n1", 90, uid="other"), bookmark(95, is_end=True)]
        _, changes = await reflected(ScriptedKube(LISTED, [VersionExpired("too old")], again))
        assert changes[2:] == [("n2", None), ("n1", None), (None, "other")]

    simulate(story())


def test_a_server_that_ends_each_watch_at_once_is_asked_ever_more_rarely(simulate: Any) -> None:
    async def story() -> None:
        kube = ScriptedKube(*[[]] * 200)
        reflector, _ = await reflected(kube, seconds=300.0)
        assert 5 < len(kube.queries) < 20
        assert reflector.failure
        assert not reflector.synced.is_set()

    simulate(story())


def test_a_handler_that_fails_stops_nothing(simulate: Any) -> None:
    async def story() -> None:
        kube = ScriptedKube(LISTED)
        reflector: Reflector[Node] = Reflector(kube.api, NODES, on_change=lambda before, after: 1 / 0)  # type: ignore[arg-type]  # it fails
        task = asyncio.ensure_future(reflector.run())
        await reflector.synced.wait()
        assert set(reflector.objects) == {("", "n1"), ("", "n2")}
        task.cancel()

    simulate(story())


def odd_frame(kind: str, name: str, version: int, uid: str = "") -> bytes:
    """A node that another version wrote: its taints are no list."""
    return frame(kind, name, version, uid).replace(b'"kind": "Node"', b'"spec": {"taints": "all"}')


@pytest.mark.parametrize("keeps_last", [True, False])
def test_an_object_that_cannot_be_read_costs_no_other_one_anything(
    simulate: Any, caplog: pytest.LogCaptureFixture, *, keeps_last: bool
) -> None:
    async def story() -> None:
        odd: list[Step] = [odd_frame("MODIFIED", "n1", 20), odd_frame("ADDED", "n9", 21), frame("ADDED", "n3", 22)]
        again = [odd_frame("ADDED", "n1", 20), frame("ADDED", "n2", 6), odd_frame("ADDED", "n9", 30)]
        kube = ScriptedKube([*LISTED, *odd], [VersionExpired("too old")], [*again, bookmark(40, is_end=True)])
        noted: list[Any] = []
        reflector, changes = await reflected(kube, keeps_last=keeps_last, on_undecodable=noted.append)
        assert [query.get("resourceVersion") for query in kube.queries] == [None, "22", None, "40"]
        assert reflector.undecodable.keys() == {("", "n1"), ("", "n9")}
        last = reflector.get("n1")
        if keeps_last:
            assert last is not None
            assert last.metadata.resource_version == "5"
            assert changes == [(None, "n1"), (None, "n2"), (None, "n3"), ("n3", None)]
        else:
            assert last is None
            assert changes == [(None, "n1"), (None, "n2"), ("n1", None), (None, "n3"), ("n3", None)]
        assert reflector.get("n9") is None
        assert noted[:2] == [("", "n1"), ("", "n9")]

    simulate(story())
    told = [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()]
    assert len(told) == 3, "n1 once for its version, n9 once for each of two"
    assert ("stays as it was" if keeps_last else "is absent") in told[0]


def test_an_object_that_cannot_be_read_ends_when_it_is_removed_mended_or_replaced(simulate: Any) -> None:
    async def story() -> None:
        listed = [*LISTED[:2], frame("ADDED", "n3", 7), bookmark(9, is_end=True)]
        odd = [odd_frame("MODIFIED", name, 20 + number) for number, name in enumerate(("n1", "n2"))]
        ends = [odd_frame("DELETED", "n1", 30), frame("MODIFIED", "n2", 31), odd_frame("ADDED", "n3", 32, uid="other")]
        noted: list[Any] = []
        reflector, changes = await reflected(ScriptedKube([*listed, *odd, *ends]), on_undecodable=noted.append)
        assert changes[3:] == [("n1", None), ("n2", "n2"), ("n3", None)]
        assert reflector.undecodable.keys() == {("", "n3")}
        assert noted == [("", "n1"), ("", "n2"), ("", "n1"), ("", "n2"), ("", "n3")]

    simulate(story())


def test_a_page_with_an_object_that_cannot_be_read_is_taken(simulate: Any) -> None:
    async def story() -> None:
        kube = ScriptedKube([ObjectInvalid("sendInitialEvents is forbidden")], [frame("ADDED", "n2", 31)])
        odd = Undecodable(ObjectMeta(name="n9", uid="n9", resource_version="4"), "Expected `array`")
        kube.lists = [([node("n1", 5), odd], "30")]
        reflector, changes = await reflected(kube)
        assert changes == [(None, "n1"), (None, "n2")]
        assert reflector.undecodable == {("", "n9"): odd}

    simulate(story())
