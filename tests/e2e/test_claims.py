"""A device claim keeps its device from session to session, whichever daemon is killed where."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest

from ai.backend.client.exceptions import BackendError
from tests.e2e.test_kills import FINAL, act, ask, connect, occupied, settled
from tests.support.cluster import wait_until
from tests.support.daemons import AGENT, MANAGER, SeparateCluster

DEVICE = "mock.device"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeparateCluster]:
    cluster = SeparateCluster(tmp_path_factory.mktemp("claims") / "data")
    cluster.start_all()
    yield cluster
    cluster.stop_all()


def start(cluster: SeparateCluster, name: str, claim: str) -> None:
    """Enqueues a session. The manager may die under the request, so its answer does not count."""
    with connect(cluster) as api, suppress(BackendError):
        slots: dict[str, str | int | float] = {"cpu": 1, "mem": "128m"}
        api.ComputeSession.get_or_create("python", name=name, resources=slots, claim=claim, enqueue_only=True)


def claim_of(cluster: SeparateCluster, name: str) -> dict[str, Any]:
    with connect(cluster) as api:
        found: dict[str, Any] = api.DeviceClaim(name).info()
    return found


def devices(cluster: SeparateCluster, name: str, status: str) -> dict[str, str]:
    """What a claim holds once it has a status."""

    def reached() -> dict[str, Any] | None:
        with suppress(BackendError):
            found = claim_of(cluster, name)
            return found if found["status"] == status else None
        return None

    found = wait_until(reached, what=f"the claim to be {status}\n{cluster.logs()}")
    held: dict[str, str] = found["devices"].get(DEVICE, {})
    return held


def run_and_end(cluster: SeparateCluster, name: str, claim: str) -> dict[str, str]:
    """Runs a session with the claim to its end; returns what it held."""
    start(cluster, name, claim)
    wait_until(lambda: settled(cluster, name, ("RUNNING",)), what=f"RUNNING\n{cluster.logs()}")
    held = devices(cluster, claim, "IN_USE")
    wait_until(lambda: act(cluster, name, "destroy"), what="acceptance of the end")
    wait_until(lambda: settled(cluster, name, FINAL), what="a final state")
    return held


@pytest.mark.parametrize(
    ("victim", "point"),
    [
        (MANAGER, "after-commit-schedule"),
        (MANAGER, "after-agent-create"),
        (MANAGER, "before-commit-observe"),
        (MANAGER, "after-commit-terminate"),
        (MANAGER, "before-commit-claim"),
        (MANAGER, "after-commit-claim"),
        (AGENT, "create.accept.after"),
        (AGENT, "create.running.before"),
        (AGENT, "destroy.workload.after"),
    ],
)
def test_a_claim_survives(cluster: SeparateCluster, victim: str, point: str) -> None:
    claim, first, second = (f"{word}-{uuid4().hex[:8]}" for word in ("claim", "first", "second"))
    with connect(cluster) as api:
        api.DeviceClaim.create(claim, resources={DEVICE: 1})
    cluster.restart_armed(victim, point)
    start(cluster, first, claim)
    if "terminate" in point or "claim" in point or "destroy" in point:
        wait_until(lambda: settled(cluster, first, ("RUNNING",)), what="RUNNING")
        ask(cluster, first, "destroy")
    assert cluster.wait_killed(victim), f"{victim} never came to {point}\n{cluster.logs()}"
    cluster.start_daemon(victim)
    cluster.wait_ready()
    wait_until(lambda: settled(cluster, first, ("RUNNING", *FINAL)), what=f"a settled state\n{cluster.logs()}")
    if settled(cluster, first, ("RUNNING",)):
        wait_until(lambda: act(cluster, first, "destroy") or settled(cluster, first, FINAL), what="the end")
    wait_until(lambda: settled(cluster, first, FINAL), what=f"a final state\n{cluster.logs()}")
    kept = devices(cluster, claim, "IDLE")
    assert len(kept) == 1
    assert occupied(cluster) == {DEVICE: "1"}
    assert run_and_end(cluster, second, claim) == kept
    assert devices(cluster, claim, "IDLE") == kept
    with connect(cluster) as api:
        assert api.DeviceClaim(claim).delete()["status"] == "DELETED"
    assert occupied(cluster) == {}
