"""Operations on a real API server: their ways to the end, locks, drains, cancellations."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ai.backend.common.device_operations import OperationPhase as P
from ai.backend.kubeacc.crd.objects import ACCELERATORS, CLASSES, OPERATIONS, AcceleratorOperation
from ai.backend.kubeacc.crd.operations import Order, Report
from ai.backend.kubeacc.crd.vocabulary import Outcome, RollbackState
from ai.backend.kubeacc.policies.roles import CONTROLLERS_ACCOUNT
from tests.kubernetes.kubeacc.conftest import Bench, Script, succeed

pytestmark = pytest.mark.needs("kubernetes")


async def test_an_operation_is_ordered_once_and_frees_the_device(bench: Bench, device: str) -> None:
    await bench.ask("off", device)
    ended = await bench.wait_for_end("off")
    assert (ended.status.phase, ended.status.attempts, ended.status.executor) == (P.SUCCEEDED, 1, "node/node1")
    assert bench.node.orders == [("off", 1, "order")]
    freed = await bench.device(device)
    assert (freed.status.operation, freed.status.class_name, freed.status.managed_by) == (None, "fpga", "KubeAcc")
    assert {c.type: c.status for c in ended.status.conditions} == {"Admitted": "True", "Complete": "True"}


async def test_kubectl_waits_for_the_conditions_of_an_operation(bench: Bench, device: str) -> None:
    bench.node.script = _begin_only
    await bench.ask("off", device)
    wait = ("-n", bench.namespace, "wait", "accop/off", "--timeout=20s")
    await bench.kubectl(*wait, "--for=condition=Admitted")
    await bench.wait_for("off", lambda op: op.status.report is not None)
    await bench.cancel("off")  # a new generation
    await bench.kubectl(*wait, "--for=condition=Complete")
    await bench.kubectl(*wait, "--for=condition=Admitted")
    await bench.kubectl(*wait, "--for=jsonpath={.status.phase}=Cancelled")
    change = '{"spec": {"ttlSecondsAfterFinished": 1000}}'
    await bench.kubectl("-n", bench.namespace, "patch", "accop", "off", "--type=merge", "-p", change)
    await bench.kubectl(*wait, "--for=condition=Complete")


async def test_one_operation_at_a_time_holds_a_device(bench: Bench, device: str) -> None:
    active: list[str] = []
    overlaps: list[list[str]] = []

    def script(operation: AcceleratorOperation, order: Order) -> Report | None:
        if operation.status.report is None:
            active.append(operation.metadata.name)
            overlaps.append(list(active))
            return None
        active.remove(operation.metadata.name)
        return succeed(operation, order)

    bench.node.script = script
    for number in range(4):
        await bench.ask(f"op{number}", device, "Reset")
    for number in range(4):
        assert (await bench.wait_for_end(f"op{number}", 40)).status.phase is P.SUCCEEDED
    assert all(len(names) == 1 for names in overlaps)
    assert len(overlaps) == 4


HOLDER = {"namespace": "default", "pod": "job", "uid": "1"}


async def test_a_held_device_is_refused_awaited_or_diagnosed(bench: Bench, device: str) -> None:
    await bench.show(device, holders=[HOLDER], held=True)
    await bench.ask("refused", device, drain="Refuse")
    refused = await bench.wait_for_end("refused")
    assert (refused.status.phase, refused.status.reason) == (P.REFUSED, "HeldByWorkload")
    assert "default/job" in refused.status.message
    await bench.ask("look", device, "Diagnose")
    assert (await bench.wait_for_end("look")).status.phase is P.SUCCEEDED
    await bench.ask("waits", device, drain="Wait")
    waiting = await bench.wait_for("waits", lambda op: op.status.reason == "WaitingForWorkloads")
    assert waiting.status.phase is P.DRAINING
    await bench.show(device)
    assert (await bench.wait_for_end("waits")).status.phase is P.SUCCEEDED


async def test_eviction_drains_a_device(bench: Bench, device: str) -> None:
    pod = {"containers": [{"name": "m", "image": "registry.test/busybox:1"}]}
    metadata = {"name": "job", "namespace": bench.namespace}
    bench.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod})
    uid = bench.cluster.pod("job", bench.namespace)["metadata"]["uid"]
    other = {"namespace": bench.namespace, "pod": "job", "uid": uid}
    await bench.show(device, holders=[other], held=True)
    await bench.ask("now", device, drain="Evict")
    await bench.wait_for("now", lambda op: op.status.reason == "WaitingForWorkloads")
    names = await bench.kubectl("-n", bench.namespace, "get", "pods", "-o", "name")
    assert names.strip() == ""
    await bench.show(device)
    assert (await bench.wait_for_end("now")).status.phase is P.SUCCEEDED


async def test_a_failure_is_retried_then_undone(bench: Bench, device: str) -> None:
    def script(operation: AcceleratorOperation, order: Order) -> Report | None:
        if order.rollback:
            return Report(sequence=order.sequence, outcome=Outcome.SUCCEEDED)
        return Report(sequence=order.sequence, outcome=Outcome.FAILED, retryable=True, message="the fan is loud")

    bench.node.script = script
    await bench.ask("off", device, retryLimit=1)
    ended = await bench.wait_for_end("off", 20)
    assert (ended.status.phase, ended.status.attempts) == (P.FAILED, 2)
    assert (ended.status.rollback, ended.status.message) == (RollbackState.DONE, "the fan is loud")
    assert [kind for _, _, kind in bench.node.orders] == ["order", "order", "undo"]
    assert (await bench.device(device)).status.operation is None


def _begin_only(operation: AcceleratorOperation, order: Order) -> Report | None:
    return succeed(operation, order) if order.abort or order.rollback else None


def _fail_first(operation: AcceleratorOperation, order: Order) -> Report | None:
    if order.rollback:
        return succeed(operation, order)
    return Report(sequence=order.sequence, outcome=Outcome.FAILED, retryable=True)


def _lie(operation: AcceleratorOperation, order: Order) -> Report | None:
    return succeed(operation, order)


CANCELS: list[tuple[P, Script, dict[str, Any], list[str]]] = [
    (P.QUEUED, succeed, {}, []),
    (P.DRAINING, succeed, {"drain": "Wait"}, []),
    (P.RUNNING, _begin_only, {}, ["order", "abort", "undo"]),
    (P.RETRYING, _fail_first, {}, ["order", "undo"]),
    (P.VERIFYING, _lie, {"operation": "Program"}, ["order", "undo"]),
]


@pytest.mark.parametrize(("phase", "script", "spec", "kinds"), CANCELS, ids=[row[0].value for row in CANCELS])
@pytest.mark.parametrize("by_deletion", [False, True], ids=["cancel", "delete"])
async def test_an_operation_is_cancelled_in_each_phase(
    bench: Bench, device: str, phase: P, script: Script, spec: dict[str, Any], kinds: list[str], by_deletion: bool
) -> None:
    bench.node.script = script
    spec = dict(spec)
    verb = spec.pop("operation", "Power")
    if verb == "Program":
        spec["program"] = {"artifact": {"uri": "https://images/a", "sha256": "0" * 64}}
    if phase is P.QUEUED:
        await bench.ask("first", device, "Reset", drain="Wait")
        bench.node.script = _begin_only
        await bench.wait_for("first", lambda op: op.status.phase is P.RUNNING)
    if phase is P.DRAINING:
        await bench.show(device, holders=[HOLDER], held=True)
    await bench.ask("op", device, verb, **spec)
    reached = await bench.wait_for("op", lambda op: op.status.phase is phase)
    if by_deletion:
        await bench.api.delete(OPERATIONS, "op", bench.namespace)
        await bench.wait_until_gone("op")
    else:
        await bench.cancel("op")
        ended = await bench.wait_for_end("op")
        assert ended.status.phase is P.CANCELLED, reached.status
    assert [kind for name, _, kind in bench.node.orders if name == "op"] == kinds
    holder = (await bench.device(device)).status.operation
    assert holder is None or holder.name == "first"


async def test_an_operation_that_is_cancelled_before_it_begins_gives_no_order(bench: Bench, device: str) -> None:
    await bench.ask("op", device, cancel=True)
    ended = await bench.wait_for_end("op")
    assert (ended.status.phase, ended.status.reason) == (P.CANCELLED, "Cancelled")
    assert bench.node.orders == []
    assert (await bench.device(device)).status.operation is None


@pytest.mark.parametrize("phase", [P.CANCELLING, P.ROLLING_BACK])
async def test_an_operation_that_is_deleted_while_it_is_undone_is_undone_once(
    bench: Bench, device: str, phase: P
) -> None:
    """A second cancellation changes nothing, and the operation stays until its device is free."""
    go = asyncio.Event()

    def script(operation: AcceleratorOperation, order: Order) -> Report | None:
        is_awaited = order.abort if phase is P.CANCELLING else order.rollback
        return None if is_awaited and not go.is_set() else _begin_only(operation, order)

    bench.node.script = script
    await bench.ask("op", device)
    await bench.wait_for("op", lambda op: op.status.phase is P.RUNNING and op.status.report is not None)
    await bench.cancel("op")
    reached = await bench.wait_for("op", lambda op: op.status.phase is phase)
    await bench.api.delete(OPERATIONS, "op", bench.namespace)
    await asyncio.sleep(0.3)
    assert (await bench.operation("op")).status.phase is phase
    holder = (await bench.device(device)).status.operation
    assert holder is not None
    assert holder.name == "op"
    go.set()
    bench.node.ask_again(await bench.operation("op") if phase is P.CANCELLING else reached)
    await bench.wait_until_gone("op")
    assert [kind for _, _, kind in bench.node.orders] == ["order", "abort", "undo"]
    assert (await bench.device(device)).status.operation is None


async def test_an_operation_that_takes_too_long_is_stopped_and_undone(bench: Bench, device: str) -> None:
    bench.node.script = _begin_only
    await bench.ask("op", device, deadlineSeconds=6)  # within them it leaves Queued, on a loaded machine too
    ended = await bench.wait_for_end("op", 40)
    assert (ended.status.phase, ended.status.reason) == (P.FAILED, "DeadlineExceeded")
    assert ended.status.rollback is RollbackState.DONE
    assert [kind for _, _, kind in bench.node.orders] == ["order", "abort", "undo"]
    assert (await bench.device(device)).status.operation is None


async def test_a_namespace_is_deleted_while_an_operation_runs(bench: Bench, device: str) -> None:
    bench.node.script = _begin_only
    await bench.ask("op", device)
    await bench.wait_for("op", lambda op: op.status.phase is P.RUNNING and op.status.report is not None)
    await bench.kubectl("delete", "namespace", bench.namespace, "--timeout=30s")
    assert [kind for _, _, kind in bench.node.orders] == ["order", "abort", "undo"]
    assert (await bench.device(device)).status.operation is None


async def test_an_operation_goes_on_when_rights_that_were_taken_come_back(bench: Bench, device: str) -> None:
    """A leader without its role changes nothing, leaks nothing, and gives no order twice."""
    bench.node.script = _begin_only
    await bench.ask("op", device)
    await bench.wait_for("op", lambda op: op.status.report is not None)
    roles = await bench.kubectl("get", "clusterrolebinding", CONTROLLERS_ACCOUNT, "-o", "json")
    await bench.kubectl("delete", "clusterrolebinding", CONTROLLERS_ACCOUNT)
    try:
        await bench.cancel("op")
        await asyncio.sleep(1.0)
        assert (await bench.operation("op")).status.phase is P.RUNNING
    finally:
        subjects = json.loads(roles)["subjects"][0]
        account = f"--serviceaccount={subjects['namespace']}:{subjects['name']}"
        role = f"--clusterrole={CONTROLLERS_ACCOUNT}"
        await bench.kubectl("create", "clusterrolebinding", CONTROLLERS_ACCOUNT, role, account)
    ended = await bench.wait_for_end("op", 60)
    assert (ended.status.phase, ended.status.rollback) == (P.CANCELLED, RollbackState.DONE)
    assert [kind for _, _, kind in bench.node.orders] == ["order", "abort", "undo"]


async def test_a_device_that_vanishes_ends_its_operation(bench: Bench, device: str) -> None:
    bench.node.script = _begin_only
    await bench.ask("op", device)
    await bench.wait_for("op", lambda op: op.status.report is not None)
    await bench.api.delete(ACCELERATORS, device)
    ended = await bench.wait_for_end("op")
    assert (ended.status.phase, ended.status.reason) == (P.FAILED, "ExecutorLost")


async def test_a_failed_rollback_quarantines_the_device_until_it_is_reset(bench: Bench, device: str) -> None:
    bench.node.script = lambda _, order: Report(sequence=order.sequence, outcome=Outcome.FAILED, message="no")
    await bench.ask("op", device)
    ended = await bench.wait_for_end("op")
    assert (ended.status.phase, ended.status.rollback) == (P.FAILED, RollbackState.FAILED)
    quarantined = {c.type: c.status for c in (await bench.device(device)).status.conditions}
    assert quarantined["Quarantined"] == "True"
    bench.node.script = succeed
    await bench.ask("again", device)
    assert (await bench.wait_for_end("again")).status.reason == "Quarantined"
    await bench.ask("reset", device, "Reset")
    assert (await bench.wait_for_end("reset")).status.phase is P.SUCCEEDED
    await bench.ask("third", device)
    assert (await bench.wait_for_end("third")).status.phase is P.SUCCEEDED


async def test_what_cannot_be_done_is_refused_with_the_reason(bench: Bench, device: str) -> None:
    await bench.ask("nowhere", "no-such-device")
    assert (await bench.wait_for_end("nowhere")).status.reason == "NoSuchAccelerator"
    await bench.show(device, device={"operations": ["Reset"]})
    await bench.ask("cannot", device)
    assert (await bench.wait_for_end("cannot")).status.reason == "NotSupported"
    await bench.show(device, devicePluginResource="vendor.com/fpga")
    await bench.ask("theirs", device)
    assert (await bench.wait_for_end("theirs")).status.reason in {"OtherDevicePlugin"}
    await bench.ask("report", device, "Diagnose")
    assert (await bench.wait_for_end("report")).status.phase is P.SUCCEEDED


async def test_an_image_needs_the_signature_of_a_signer_of_the_class(bench: Bench, device: str) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    public_key = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    name = f"signed-{bench.namespace}"
    labels = {"signed": bench.namespace}
    selector = {"matchLabels": labels}
    spec = {"selector": selector, "priority": 9, "signers": [{"name": "lab", "publicKey": public_key}]}
    await bench.api.create(CLASSES, {"metadata": {"name": name}, "spec": spec})
    await bench.api.patch(ACCELERATORS, device, {"metadata": {"labels": labels}})
    async with asyncio.timeout(10):
        while (await bench.device(device)).status.class_name != name:  # noqa: ASYNC110  # no event tells it
            await asyncio.sleep(0.05)
    digest = hashlib.sha256(b"bits")
    image = {"uri": "file:///images/a.bit", "sha256": digest.hexdigest()}
    await bench.ask("unsigned", device, "Program", program={"artifact": image})
    assert (await bench.wait_for_end("unsigned")).status.reason == "ImageRejected"
    signature = base64.b64encode(key.sign(digest.digest())).decode()
    signed = {**image, "signer": "lab", "signature": signature}
    bench.node.shown_program = {"image": "/store/a.bit", "sha256": digest.hexdigest()}
    await bench.ask("signed", device, "Program", program={"artifact": signed})
    assert (await bench.wait_for_end("signed")).status.phase is P.SUCCEEDED
