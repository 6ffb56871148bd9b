"""Implements ``kubectl accelerators``, which lists accelerators and operates them."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from rich.console import Console, RenderableType

from ai.backend.common.device_operations import OperationPhase, OperationVerb
from ai.backend.common.errors import BackendError, InvalidInput
from ai.backend.infra.retry import Backoff
from ai.backend.kubeacc.composition import connect
from ai.backend.kubeacc.crd.objects import ACCELERATORS, OPERATIONS, Accelerator, AcceleratorOperation
from ai.backend.kubeacc.crd.vocabulary import DrainMode, PowerState
from ai.backend.kubeacc.kubectl import views
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.configuration import read_kubeconfig
from ai.backend.node.kube_api.decoding import Undecodable
from ai.backend.node.kube_api.resources import ObjectT, Resource

T = TypeVar("T")
_EXIT_FAILED, _EXIT_REFUSED = 1, 3
_SELF_REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


def _kubeconfig() -> Path:
    """Returns the first file of ``KUBECONFIG``, else the file of the home directory, as kubectl's default."""
    names = [name for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    return Path(names[0]) if names else Path.home() / ".kube" / "config"


class Session:
    """Connects to the cluster that the options name, and prints results."""

    def __init__(self, context_name: str, namespace: str, output: str) -> None:
        self._context_name = context_name
        self._namespace = namespace
        self.output = output

    @property
    def namespace(self) -> str:
        return self._namespace or read_kubeconfig(_kubeconfig(), self._context_name).namespace

    def run(self, send_requests: Callable[[KubeApi], Awaitable[T]]) -> T:
        """Runs requests. An error of the cluster is printed as one line."""

        async def main() -> T:
            api = connect(_kubeconfig(), self._context_name)
            try:
                return await send_requests(api)
            finally:
                await api.close()

        try:
            return asyncio.run(main())
        except BackendError as e:
            raise click.ClickException(e.message) from None

    def print(self, value: object, rendered_value: RenderableType) -> None:
        if self.output == "json":
            click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())
        else:
            Console(soft_wrap=False).print(rendered_value)


_session = click.make_pass_decorator(Session)


@click.group()
@click.option("--context", "context_name", default="", help="The context of the kubeconfig file.")
@click.option("-n", "--namespace", default="", help="The namespace of operations; the context's by default.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.pass_context
def main(ctx: click.Context, context_name: str, namespace: str, output: str) -> None:
    """Accelerators of a Kubernetes cluster: GPUs, FPGAs, NPUs, NICs and others."""
    ctx.obj = Session(context_name, namespace, output)


@main.command("list")
@click.option("--node", default="", help="Only devices of this node.")
@click.option("--type", "kind", default="", help="Only devices of this type, such as FPGA.")
@click.option("--class", "class_name", default="", help="Only devices of this class.")
@_session
def list_devices(session: Session, node: str, kind: str, class_name: str) -> None:
    """List devices with their health, and who holds them."""
    devices = [
        device
        for device in session.run(lambda api: _devices(api, node))
        if kind.lower() in ("", device.spec.type.lower()) and class_name in ("", device.status.class_name)
    ]
    session.print(devices, views.device_list(devices))


async def _devices(api: KubeApi, node: str = "") -> list[Accelerator]:
    return await _list_readable(api, ACCELERATORS, f"spec.nodeName={node}" if node else "")


async def _list_readable(api: KubeApi, resource: Resource[ObjectT], field_selector: str) -> list[ObjectT]:
    """Returns the selected objects, and prints the names of objects that this version cannot read."""
    objects, _ = await api.list_readable(resource, field_selector=field_selector)
    readable_objects: list[ObjectT] = []
    for obj in objects:
        if isinstance(obj, Undecodable):
            click.echo(f"{resource} {'/'.join(filter(None, obj.key))} cannot be read: {obj.problem!r:.500}", err=True)
        else:
            readable_objects.append(obj)
    return readable_objects


@main.command("tree")
@click.option("--node", default="", help="Only this node.")
@_session
def tree(session: Session, node: str) -> None:
    """Show the topology: nodes, NUMA nodes, PCIe roots, devices, links, partitions."""
    devices = session.run(lambda api: _devices(api, node))
    session.print(devices, views.device_tree(devices))


@main.command("describe")
@click.argument("name")
@_session
def describe(session: Session, name: str) -> None:
    """Show everything about one device, with its operations."""

    async def read_device(api: KubeApi) -> tuple[Accelerator, list[AcceleratorOperation]]:
        device = await api.get(ACCELERATORS, name)
        return device, await _list_readable(api, OPERATIONS, f"spec.accelerator={name}")

    device, operations = session.run(read_device)
    session.print({"accelerator": device, "operations": operations}, views.device_details(device, operations))


@main.command("top")
@click.option("--node", default="", help="Only devices of this node.")
@_session
def top(session: Session, node: str) -> None:
    """Show how much devices are used, as their nodes last reported."""
    devices = session.run(lambda api: _devices(api, node))
    session.print(devices, views.usage_table(devices))


@main.command("operate")
@click.argument("verb", type=click.Choice([verb.value.lower() for verb in OperationVerb], case_sensitive=False))
@click.argument("device")
@click.option("--power", type=click.Choice(["On", "Off"], case_sensitive=False), help="For power.")
@click.option("--node", default="", help="For attach: the node.")
@click.option("--image", default="", help="For program: https, oci, file:/// or glance: address of the image.")
@click.option("--sha256", default="", help="For program: the digest of the image.")
@click.option("--signature", default="", help="For program: the signature of the digest, in base64.")
@click.option("--signer", default="", help="For program: who signed, a signer of the device's class.")
@click.option(
    "--profile", default="", help="For partition: the profile to create; without it the partition is destroyed."
)
@click.option("--drain", type=click.Choice([mode.value for mode in DrainMode], case_sensitive=False), default="Refuse")
@click.option("--deadline", type=click.IntRange(1), help="Seconds until the operation must have ended.")
@click.option("--wait/--no-wait", default=True, help="Wait for the end and print it.", show_default=True)
@_session
def operate(session: Session, /, verb: str, device: str, *, wait: bool, **options: Any) -> None:
    """Attach, detach, program, power, reset, partition or diagnose a device.

    Exits with 3 if a policy refuses, 1 if the operation fails or is cancelled.
    """
    try:
        spec = operation_spec(OperationVerb(verb.capitalize()), device, **options)
    except InvalidInput as e:
        raise click.UsageError(e.message) from None
    namespace = session.namespace
    operation = session.run(lambda api: _operate(api, spec, namespace, wait=wait))
    session.print(operation, views.operation_list([operation]))
    if operation.status.phase is OperationPhase.REFUSED:
        raise SystemExit(_EXIT_REFUSED)
    if operation.status.phase in (OperationPhase.FAILED, OperationPhase.CANCELLED):
        raise SystemExit(_EXIT_FAILED)


def operation_spec(verb: OperationVerb, device: str, **options: Any) -> dict[str, Any]:
    """Returns the specification of an operation without its user. Raises InvalidInput: an option is missing."""
    spec: dict[str, Any] = {"accelerator": device, "operation": verb.value, "drain": options["drain"]}
    if options["deadline"]:
        spec["deadlineSeconds"] = options["deadline"]
    if verb is OperationVerb.POWER:
        spec["power"] = {"state": PowerState(_require_option(options, "power", verb).capitalize()).value}
    elif verb is OperationVerb.ATTACH:
        spec["attach"] = {"nodeName": _require_option(options, "node", verb)}
    elif verb is OperationVerb.PROGRAM:
        artifact = {
            "uri": _require_option(options, "image", verb),
            "sha256": _require_option(options, "sha256", verb).lower(),
        }
        if options["signature"] or options["signer"]:
            artifact |= {name: _require_option(options, name, verb) for name in ("signature", "signer")}
        spec["program"] = {"artifact": artifact}
    elif verb is OperationVerb.PARTITION:
        profile = options["profile"]
        spec["partition"] = {"action": "Create", "profile": profile} if profile else {"action": "Destroy"}
    return spec


def _require_option(options: dict[str, Any], name: str, verb: OperationVerb) -> str:
    if not options[name]:
        raise InvalidInput(f"{verb.value.lower()} needs --{name}")
    return str(options[name])


async def _operate(api: KubeApi, spec: dict[str, Any], namespace: str, *, wait: bool) -> AcceleratorOperation:
    """Creates an operation in the name of the caller, as the API server knows it, and waits for its end."""
    self_review = msgspec.json.decode(
        await api.request(
            "POST", _SELF_REVIEW, body={"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        )
    )
    user = self_review["status"]["userInfo"]
    spec |= {"requestedBy": user["username"], "requestedGroups": sorted(set(user.get("groups", ())))[:64]}
    name = f"{spec['operation'].lower()}-{secrets.token_hex(4)}"
    operation = await api.create(OPERATIONS, {"metadata": {"name": name}, "spec": spec}, namespace)
    poll_delays = Backoff(0.1, 2.0)
    while wait and not operation.status.phase.is_final:
        await poll_delays.wait()
        operation = await api.get(OPERATIONS, name, namespace)
    return operation
