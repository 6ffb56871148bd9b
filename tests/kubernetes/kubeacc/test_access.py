"""Who may do what, on a real API server with its RBAC and the admission policies."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tools.kube.cluster import Cluster

from ai.backend.infra.retry import Backoff
from ai.backend.kubeacc.controllers.manager import ControllerManager
from ai.backend.kubeacc.crd.objects import ACCELERATORS, CLASSES, OPERATIONS, POLICIES
from ai.backend.kubeacc.crd.vocabulary import GROUP, NODE_MANAGER
from ai.backend.kubeacc.policies.roles import NAMESPACE, NODE_ACCOUNT
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.configuration import ClusterAddress, Token
from ai.backend.node.kube_api.errors import Denial, RequestDenied
from ai.backend.node.kube_api.resources import RESOURCE_SLICES, Resource
from tests.kubernetes.kubeacc.conftest import NODE, Bench, add, client_of, running

pytestmark = pytest.mark.needs("kubernetes")
_numbers = itertools.count(1)
GRANTS = {
    "viewer": {"read"},
    "operator": {"read", "operate"},
    "administrator": {"read", "operate", "operate elsewhere", "cordon", "write class", "write policy"},
    "nobody": set(),
}
"""Role -> what it may do. ``operate elsewhere``: in a namespace in which the role is not bound."""
ACTIONS = sorted(set().union(*GRANTS.values()))


@pytest.fixture(scope="session")
def team(acc_cluster: Cluster) -> Cluster:
    """Users, a namespace ``team`` where everything is allowed, and one ``elsewhere``."""
    for name in ("team", "elsewhere"):
        acc_cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    add(acc_cluster, "AcceleratorPolicy", "team", {"namespaces": ["team", "elsewhere"], "operations": ["Reset"]})
    spec = {"driver": "mock", "deviceID": "t", "type": "FPGA", "nodeName": NODE}
    add(acc_cluster, "Accelerator", "team-device", spec)
    roles = {"viewer": "clusterrolebinding", "administrator": "clusterrolebinding", "operator": "rolebinding"}
    for role, kind in roles.items():
        place = ["-n", "team"] if kind == "rolebinding" else []
        acc_cluster.kubectl(*place, "create", kind, role, f"--clusterrole=kube-acc-{role}", f"--user={role}")
    acc_cluster.kubectl("create", "clusterrolebinding", "op-reads", "--clusterrole=kube-acc-viewer", "--user=operator")
    return acc_cluster


@pytest.fixture
async def admitted(team: Cluster, api: KubeApi, controllers_api: KubeApi) -> AsyncIterator[Cluster]:
    async with running(ControllerManager(controllers_api).run):
        await Bench(api, team, "team", None).wait_until_admitted("Reset")  # type: ignore[arg-type]  # no node needed
        yield team


def operation(user: str, **spec: Any) -> dict[str, Any]:
    name = f"op{next(_numbers)}"
    body = {"accelerator": "team-device", "operation": "Reset", "requestedBy": user, **spec}
    return {"metadata": {"name": name}, "spec": body}


async def attempt(api: KubeApi, user: str, action: str) -> None:
    if action == "read":
        resources: tuple[Resource[Any], ...] = (ACCELERATORS, CLASSES, POLICIES, OPERATIONS)
        for resource in resources:
            await api.list(resource)
    elif action == "operate":
        await api.create(OPERATIONS, operation(user), "team", dry_run=True)
    elif action == "operate elsewhere":
        await api.create(OPERATIONS, operation(user), "elsewhere", dry_run=True)
    elif action == "cordon":
        await api.patch(ACCELERATORS, "team-device", {"spec": {"unschedulable": True}})
    elif action == "write class":
        await api.create(CLASSES, {"metadata": {"name": "mine"}, "spec": {}}, dry_run=True)
    else:
        await api.create(POLICIES, {"metadata": {"name": "mine"}, "spec": {}}, dry_run=True)


@pytest.mark.parametrize("role", GRANTS)
async def test_each_role_may_do_what_the_table_says(admitted: Cluster, role: str) -> None:
    async with client_of(admitted.user(role)) as api:
        for action in ACTIONS:
            if action in GRANTS[role]:
                await attempt(api, role, action)
            else:
                with pytest.raises(RequestDenied) as refused:
                    await attempt(api, role, action)
                assert refused.value.denial is Denial.PERMISSION, action


async def test_nobody_writes_a_status_but_controllers_and_nodes(admitted: Cluster) -> None:
    async with client_of(admitted.user("administrator")) as api:
        with pytest.raises(RequestDenied) as refused:
            await api.patch(ACCELERATORS, "team-device", {"status": {"held": False}}, subresource="status")
        assert refused.value.denial is Denial.PERMISSION


async def test_admission_refuses_what_no_policy_allows_and_false_names(admitted: Cluster) -> None:
    refusals = {
        "lets administrator Power devices from namespace team": operation(
            "administrator", operation="Power", power={"state": "Off"}
        ),
        "with drain Evict": operation("administrator", drain="Evict"),
        "requestedBy must be your own name, administrator": operation("alice"),
        "requestedGroups may name only groups": operation("administrator", requestedGroups=["system:masters"]),
    }
    async with client_of(admitted.user("administrator", ("admins",))) as api:
        for message, body in refusals.items():
            with pytest.raises(RequestDenied, match=message) as refused:
                await api.create(OPERATIONS, body, "team")
            assert refused.value.denial is Denial.ADMISSION
        await api.create(OPERATIONS, operation("administrator", requestedGroups=["admins"]), "team", dry_run=True)


async def test_an_operator_takes_no_running_operation_from_its_device(
    admitted: Cluster, bench: Bench, device: str
) -> None:
    """It would leave the device quarantined for everybody, and what it attached in no quota."""
    grant = ("create", "rolebinding", "operator", "--clusterrole=kube-acc-operator", "--user=operator")
    await asyncio.to_thread(admitted.kubectl, "-n", bench.namespace, *grant)
    bench.node.script = lambda _, order: None
    await bench.ask("held", device, "Reset")
    await bench.wait_for("held", lambda op: op.status.report is not None)
    nothing = {"metadata": {"finalizers": None}}
    async with client_of(admitted.user("operator")) as api:
        with pytest.raises(RequestDenied, match="the finalizer of an operation") as refused:
            await api.patch(OPERATIONS, "held", nothing, bench.namespace)
        assert refused.value.denial is Denial.ADMISSION
        await api.patch(OPERATIONS, "held", {"spec": {"cancel": True}}, bench.namespace)
    async with client_of(admitted.user("administrator")) as api:
        await asyncio.to_thread(
            admitted.kubectl, "-n", bench.namespace, "create", "rolebinding", "administrator",
            "--clusterrole=kube-acc-administrator", "--user=administrator",
        )  # fmt: skip
        await api.patch(OPERATIONS, "held", nothing, bench.namespace)


def node_address(cluster: Cluster, node: str) -> ClusterAddress:
    """The address with the token that a node plugin has on its node."""
    uid = cluster.request("GET", f"/api/v1/nodes/{node}")["metadata"]["uid"]
    token = cluster.kubectl(
        *("-n", NAMESPACE, "create", "token", NODE_ACCOUNT),
        *("--bound-object-kind=Node", f"--bound-object-name={node}", f"--bound-object-uid={uid}"),
    )
    authority = cluster.certificate_authority.read_text()
    return ClusterAddress(server=cluster.url, authority=authority, token=Token(token.strip()))


def _slice(node: str) -> dict[str, Any]:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {"spec": {"driver": GROUP, "nodeName": node, "pool": pool, "devices": [{"name": "a"}]}}


async def test_a_node_writes_its_own_devices_and_reports_only(admitted: Cluster, bench: Bench, device: str) -> None:
    admitted.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node2"}})
    addresses = [await asyncio.to_thread(node_address, admitted, name) for name in (NODE, "node2")]
    own, other = (KubeApi(address, lambda: Backoff(0.2, 5.0)) for address in addresses)
    status = {"status": {"health": {"state": "unhealthy"}}}
    bench.node.script = lambda _, order: None
    await bench.ask("op", device, "Reset")
    running_operation = await bench.wait_for("op", lambda op: op.status.report is not None)
    sequence = running_operation.status.order.sequence if running_operation.status.order else 0
    report = {"status": {"report": {"sequence": sequence, "outcome": "Succeeded"}}}

    async def write_report(api: KubeApi, body: dict[str, Any], **more: Any) -> None:
        await api.apply(
            OPERATIONS, "op", body, bench.namespace, manager=NODE_MANAGER, force=True, subresource="status", **more
        )

    try:
        await own.apply(ACCELERATORS, device, status, manager=NODE_MANAGER, force=True, subresource="status")
        spec = {"driver": "mock", "deviceID": "x", "type": "FPGA", "nodeName": "node2"}
        with pytest.raises(RequestDenied, match="its own node only"):
            await own.create(ACCELERATORS, {"metadata": {"name": "foreign"}, "spec": spec})
        with pytest.raises(RequestDenied, match="its own node only"):
            await other.apply(ACCELERATORS, device, status, manager=NODE_MANAGER, force=True, subresource="status")
        with pytest.raises(RequestDenied, match="its own node only"):
            await other.delete(ACCELERATORS, device)
        await own.apply(RESOURCE_SLICES, "own-slice", _slice(NODE), manager=NODE_MANAGER)
        for client, name, node in ((own, "foreign-slice", "node2"), (other, "own-slice", NODE)):
            with pytest.raises(RequestDenied, match="slices of its own node only"):
                await client.apply(RESOURCE_SLICES, name, _slice(node), manager=NODE_MANAGER, force=True)
        with pytest.raises(RequestDenied, match="slices of its own node only"):
            await other.delete(RESOURCE_SLICES, "own-slice")
        with pytest.raises(RequestDenied, match="its own node only"):
            await other.patch(ACCELERATORS, device, {"spec": {"nodeName": "node2"}})
        with pytest.raises(RequestDenied, match="nothing but the report"):
            await write_report(other, report)
        with pytest.raises(RequestDenied, match="nothing but the report"):
            await own.patch(OPERATIONS, "op", {"status": {"phase": "Succeeded"}}, bench.namespace, subresource="status")
        await write_report(own, report)
        await bench.wait_for_end("op")
    finally:
        await own.close()
        await other.close()
