"""`backend.ai service`: endpoints of model services (spec 03-12, client wire contract 2.8)."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from ai.backend.cli.framework.lazy import Entry, LazyGroup, LeafCommand, ListCommand, Outcome, screen_of
from ai.backend.cli.framework.objects import follow_task
from ai.backend.cli.framework.output import columns
from ai.backend.cli.framework.params import options
from ai.backend.cli.framework.values import readable_time
from ai.backend.cli.service.autoscale import decision_facts
from ai.backend.cli.session.options import (
    cluster_mode_option,
    device_request_option,
    env_option,
    resources_option,
    variant_option,
)

if TYPE_CHECKING:
    from ai.backend.client.func.service import AsyncService
    from ai.backend.client.session import AsyncSession

service = LazyGroup(
    "service",
    entries={
        "autoscale": Entry("ai.backend.cli.service.autoscale:autoscale", "Let the number of replicas follow the load."),
        "usage": Entry("ai.backend.cli.service.usage:usage", "Show what tokens used: requests, prompts, answers."),
    },
    help="Model services: endpoints that many people call, on replicas that are replaced.",
)
_LIST_COLUMNS = columns("name | id/short: ID | status | ready | service_endpoint/plain: URL | is_public: Public")
_REPLICA_COLUMNS = columns(
    "route_id/plain: Replica | revision/number | status | reason | traffic_ratio/number: Weight | detail"
)
_VARIANT_COLUMNS = columns("name | title | command")
_EVENT_COLUMNS = columns("at/time: When | subject/plain | status | reason | detail")
_FIRST_POLL_S, _LAST_POLL_S = 0.2, 2.0
_NAME = click.argument("name")
_CLEARED_FIELDS = {
    "architecture": "architecture",
    "model-version": "model_version",
    "model-definition-path": "model_definition_path",
    "model-name": "model_name",
    "model-mount-destination": "model_mount_destination",
    "runtime-variant": "runtime_variant",
    "startup-command": "startup_command",
    "bootstrap-script": "bootstrap_script",
    "port": "port",
    "tag": "tag",
    "resources": "resources",
    "resource-opts": "resource_opts",
    "env": "environ",
    "claim": "claim",
    "variant": "variant_requirements",
    "device-request": "device_requests",
}
"""Choice of `service update --clear` -> field of the request."""
_SERVED_STATUSES = frozenset({"healthy", "degraded"})


def _parse_policy(_ctx: click.Context, param: click.Parameter, text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        raise click.BadParameter('it is JSON, such as {"kind": "blue-green"}', param=param) from None
    if not isinstance(value, dict):
        raise click.BadParameter("it is a JSON object", param=param)
    return value


_revision_options = options(
    click.option("--model-version", metavar="VERSION", help="A word about the model's version."),
    click.option(
        "--model-definition-path",
        metavar="PATH",
        help="The definition in the folder.  [default: model-definition.yaml]",
    ),
    click.option("--model-name", metavar="NAME", help="Which model of the definition; the only one needs no choice."),
    click.option(
        "--runtime-variant",
        metavar="NAME",
        help="A kind of inference server, such as vllm; `service runtimes` lists them.",
    ),
    click.option(
        "--startup-command",
        metavar="COMMAND",
        help="What starts the server; it listens at $BACKEND_SERVICE_PORT of 127.0.0.1.",
    ),
    click.option(
        "--port",
        type=click.IntRange(1024, 65535),
        help="Where the server listens.  [default: each replica gets a port of its own]",
    ),
    click.option("--tag", help="A word of your own."),
    click.option(
        "--policy",
        callback=_parse_policy,
        metavar="JSON",
        help='How new revisions are rolled out, such as {"kind": "canary"}.',
    ),
    click.option(
        "--claim",
        metavar="NAME",
        help="The device claim whose devices its replicas get, instead of accelerators among -r; --claim '' ends it.",
    ),
    resources_option,
    variant_option,
    device_request_option,
    env_option,
)
_creation_options = options(
    click.option("-t", "--name", "service_name", metavar="NAME", help="Name of the service, 4 to 48 characters."),
    click.option(
        "--model-mount-destination", default="/models", show_default=True, help="Where replicas see the model."
    ),
    click.option(
        "--public", "--expose-to-public", "open_to_public", is_flag=True, help="Anyone may call it without a token."
    ),
    click.option("--cluster-size", type=click.IntRange(1), default=1, show_default=True, help="Kernels of a replica."),
    cluster_mode_option,
    click.option("--domain", "domain_name", help="Domain.  [default: BACKEND_DOMAIN]"),
    click.option("--group", "--project", "group_name", help="Group.  [default: BACKEND_GROUP]"),
    click.option("--resource-group", "--scaling-group", "scaling_group", help="Resource group to run in."),
    click.option("--architecture", help="Architecture of the image."),
    click.option(
        "--owner", "owner_access_key", metavar="ACCESS_KEY", help="Create it for somebody else; for administrators."
    ),
    _revision_options,
)


def _given_values(values: Mapping[str, Any]) -> Any:
    given_values = {name: value for name, value in values.items() if value not in (None, "", {}, ())}
    return {**given_values, "claim": ""} if values.get("claim") == "" else given_values


@service.command("create", cls=LeafCommand)
@click.argument("image")
@click.argument("model")
@click.argument("replicas", type=click.IntRange(0), default=1)
@_creation_options
@click.option("--wait", is_flag=True, help="Wait until a replica is ready.")
@click.option("--max-wait", type=click.FloatRange(0), default=0, metavar="SECONDS", help="Wait no longer.")
async def create(
    api: AsyncSession, image: str, model: str, replicas: int, wait: bool, max_wait: float, **values: Any
) -> Outcome:
    """Serve the folder or artifact MODEL by REPLICAS sessions of IMAGE (one by default).

    \b
      backend.ai service create -t my-service -r cpu=1 -r mem=1g python my-model
    """
    service_handle = await api.Service.create(image, model, replicas, **_given_values(values))
    if wait:
        return await _wait_for_service(api, service_handle, max_wait)
    detail = await service_handle.describe()
    screen_of().inform(f"next: backend.ai service info {detail['name']} | backend.ai service why {detail['name']}")
    return detail, f"service {detail['name']} ({detail['endpoint_id']}) is being started"


@service.command("try", cls=LeafCommand)
@click.argument("image")
@click.argument("model")
@_creation_options
async def try_(api: AsyncSession, image: str, model: str, **values: Any) -> Outcome:
    """Start one replica as `create` would, probe it, and end it."""
    trial = await api.Service.try_start(image, model, **_given_values(values))
    message = await follow_task(api, trial["task_id"], name="the trial")
    return {**trial, "message": message}, message


@service.command("list", cls=ListCommand)
async def list_(api: AsyncSession) -> None:
    """List model services, the newest first."""
    services = await api.Service.list()
    empty_hint = "There are no services here. `backend.ai service create IMAGE MODEL` makes one."
    screen_of().print_rows(services, _LIST_COLUMNS, empty_hint, describe=_list_row)


def _list_row(item: Mapping[str, Any]) -> dict[str, Any]:
    return {**item, "ready": f"{item['active_route_count']} of {item['desired_session_count']}"}


@service.command("runtimes", cls=ListCommand)
async def runtimes(api: AsyncSession) -> None:
    """List the runtime variants: kinds of inference servers whose command is known."""
    screen_of().print_rows(await api.Service.runtimes(), _VARIANT_COLUMNS, "There are none.")


@service.command("info")
@_NAME
async def info(api: AsyncSession, name: str) -> None:
    """Show the service NAME with its revisions and replicas."""
    screen, detail = screen_of(), await api.Service(name).describe()
    if screen.is_json:
        screen.print_json(detail)
        return
    screen.print_facts(
        (
            ("name", detail["name"]),
            ("endpoint id", detail["endpoint_id"]),
            ("status", f"{detail['status']} ({detail['reason']})"),
            ("URL", detail["service_endpoint"] or "none yet"),
            ("public", detail["is_public"]),
            ("replicas wanted", detail["desired_session_count"]),
            ("model", f"{detail['model_name']} at {detail['model_mount_destination']}"),
            ("image", detail["image"]),
            *([("claim", detail["claim"])] if detail.get("claim") else []),
            *_device_facts(detail),
            ("tokens per second", _format_rate(detail.get("tokens_per_s"))),
            ("revisions", ", ".join(f"{revision['number']} {revision['status']}" for revision in detail["revisions"])),
            ("created at", readable_time(detail["created_at"])),
        )
    )
    if detail["active_routes"]:
        screen.print_table(detail["active_routes"], _REPLICA_COLUMNS)


def _device_facts(detail: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the variants and device requests of a service for printing, each with a heading.

    Earlier servers do not report them.
    """
    names_by_heading = {"variants": "variant_requirements", "device requests": "device_requests"}
    return [(heading, "; ".join(detail[name])) for heading, name in names_by_heading.items() if detail.get(name)]


def _format_rate(tokens_per_s: float | None) -> str:
    """Formats a rate of tokens per second as text, or as a dash if the server reports no rate."""
    return "-" if tokens_per_s is None else f"{tokens_per_s:g} in this hour and the one before"


@service.command("get-endpoint", cls=LeafCommand)
@_NAME
async def get_endpoint(api: AsyncSession, name: str) -> Outcome:
    """Print the URL of the service NAME."""
    detail = await api.Service(name).describe()
    url = detail["service_endpoint"]
    if url is None:
        screen_of().fail(f"{name} has no URL yet: no replica was ready so far")
    return {"url": url}, str(url)


@service.command("why")
@_NAME
async def why(api: AsyncSession, name: str) -> None:
    """Explain the state of the service NAME: the last plan, what cannot be done, and why each replica is as it is."""
    screen, detail = screen_of(), await api.Service(name).why()
    if screen.is_json:
        screen.print_json(detail)
        return
    fact_pairs = [("status", f"{detail['status']} ({detail['reason']})"), ("plan", detail["explanation"])]
    screen.print_facts([*fact_pairs, *([("problem", detail["problem"])] if detail["problem"] else [])])
    rows = [
        {**replica, "detail": detail["obstacles"].get(replica["route_id"]) or replica["detail"]}
        for replica in detail["replicas"]
    ]
    if rows:
        screen.print_table(rows, _REPLICA_COLUMNS)
    decision = detail.get("autoscaling", {}).get("last_decision")
    if decision is not None:
        screen.print_facts(decision_facts(decision))


@service.command("history", cls=ListCommand)
@_NAME
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many at most.")
@click.option("--offset", type=click.IntRange(0), default=0, help="How many to skip.")
async def history(api: AsyncSession, name: str, limit: int, offset: int) -> None:
    """List the changes of the service NAME with their reasons, the newest first."""
    events = await api.Service(name).history(limit=limit, offset=offset)
    screen_of().print_rows(events, _EVENT_COLUMNS, "Nothing has happened to it so far.")


@service.command("scale", cls=LeafCommand)
@_NAME
@click.argument("replicas", type=click.IntRange(0))
async def scale(api: AsyncSession, name: str, replicas: int) -> Outcome:
    """Change the number of REPLICAS of the service NAME."""
    reply = await api.Service(name).scale(replicas)
    return reply, f"{name}: {reply['current_route_count']} of {reply['target_count']} replicas are ready"


@service.command("update", cls=LeafCommand)
@_NAME
@click.option("--image", help="Another image.")
@click.option("--model", help="Another folder or artifact.")
@click.option("--rename", "new_name", metavar="NAME", help="Another name.")
@_revision_options
@click.option(
    "--clear",
    "cleared",
    multiple=True,
    type=click.Choice(sorted(_CLEARED_FIELDS)),
    help="Have it as in a creation without this option; env removes the secrets too. Repeat for more.",
)
async def update(api: AsyncSession, name: str, cleared: tuple[str, ...], **values: Any) -> Outcome:
    """Roll out a new revision of the service NAME: what is not given stays. Without a change of what its replicas are
    made of, no revision is made."""
    renamed_options = {"new_name": "name", "envs": "environ"}
    changes = {renamed_options.get(key, key): value for key, value in _given_values(values).items()}
    cleared_fields = [_CLEARED_FIELDS[option] for option in cleared]
    if not changes and not cleared_fields:
        raise click.UsageError("say what is to change, such as --env KEY=VALUE, --image IMAGE or --clear tag")
    conflicting_option = next((option for option in cleared if _CLEARED_FIELDS[option] in changes), None)
    if conflicting_option is not None:
        raise click.UsageError(f"give either --clear {conflicting_option} or a value for it")
    detail = await api.Service(name).modify(**changes, clear=cleared_fields)
    newest_revision = detail["revisions"][0]
    return detail, f"{detail['name']}: revision {newest_revision['number']} is {newest_revision['status']}"


@service.command("rollback", cls=LeafCommand)
@_NAME
async def rollback(api: AsyncSession, name: str) -> Outcome:
    """Roll back the revision of the service NAME that is being rolled out."""
    return await api.Service(name).rollback(), f"{name}: the revision is being rolled back"


@service.command("promote", cls=LeafCommand)
@_NAME
async def promote(api: AsyncSession, name: str) -> Outcome:
    """End the present step of the canary of the service NAME, or the watch of its blue-green roll-out."""
    return await api.Service(name).promote(), f"{name}: the step is over"


@service.command("rm", cls=LeafCommand)
@click.argument("names", nargs=-1, required=True)
async def rm(api: AsyncSession, names: tuple[str, ...]) -> Outcome:
    """End the services NAMES with all their replicas."""
    for name in names:
        await api.Service(name).delete()
    return {"removed": list(names)}, f"ending: {', '.join(names)}"


@service.command("sync", cls=LeafCommand)
@_NAME
async def sync(api: AsyncSession, name: str) -> Outcome:
    """Send the routes of the service NAME to the app proxy again."""
    return await api.Service(name).sync(), f"{name}: its routes are sent again"


@service.command("generate-token", cls=LeafCommand)
@_NAME
@click.argument("duration", default="1d")
@click.option("-q", "--quiet", is_flag=True, help="Print the token alone.")
async def generate_token(api: AsyncSession, name: str, duration: str, quiet: bool) -> Outcome:
    """Make a token by which the service NAME is called for DURATION, such as 3600s or 1d (the default).

    It is told once, and cannot be revoked.
    """
    reply = await api.Service(name).generate_api_token(duration)
    return reply, reply["token"] if quiet else f"token of {name} for {duration}: {reply['token']}"


@service.command("update-traffic-ratio", cls=LeafCommand)
@_NAME
@click.argument("replica", type=click.UUID)
@click.argument("ratio", type=click.FloatRange(0))
async def update_traffic_ratio(api: AsyncSession, name: str, replica: UUID, ratio: float) -> Outcome:
    """Give the REPLICA of the service NAME another weight: RATIO among those of its revision."""
    return await api.Service(name).update_traffic_ratio(replica, ratio), f"{replica}: weight {ratio:g}"


@service.command("downscale-route", cls=LeafCommand)
@_NAME
@click.argument("replica", type=click.UUID)
async def downscale_route(api: AsyncSession, name: str, replica: UUID) -> Outcome:
    """End one REPLICA of the service NAME, and lower the desired number by one."""
    return await api.Service(name).downscale_single_route(replica), f"{replica}: it drains, and ends"


async def _wait_for_service(api: AsyncSession, service_handle: AsyncService, max_wait: float) -> int:
    """Waits until a service has a ready replica, and prints the reasons while it has none. Returns the exit code.

    ``max_wait`` is in seconds; zero: no limit.
    """
    screen, pause_s, printed_text = screen_of(), _FIRST_POLL_S, ""
    deadline = time.monotonic() + max_wait
    while True:
        detail = await service_handle.describe()
        if detail["status"] in _SERVED_STATUSES and detail["service_endpoint"]:
            screen.print_result(detail, f"{detail['name']} is {detail['status']} at {detail['service_endpoint']}")
            return 0
        explanation = await service_handle.why()
        reason_text = next(
            iter(explanation["obstacles"].values()), explanation["problem"] or explanation["explanation"]
        )
        if reason_text != printed_text:
            screen.inform(f"{detail['name']}: {reason_text}")
            printed_text, pause_s = reason_text, _FIRST_POLL_S
        if max_wait and time.monotonic() >= deadline:
            screen.error(f"{detail['name']} has no ready replica within {max_wait:g} s", code="timeout")
            return 124
        await api.transport.pause(pause_s)
        pause_s = min(_LAST_POLL_S, pause_s * 1.5)
