"""The commands of `backend.ai claim`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.claim.group import CLAIM_COLUMNS, claim, claim_row, describe_devices
from ai.backend.cli.framework.lazy import ListCommand, Outcome, screen_of
from ai.backend.cli.framework.values import describe_slots, readable_time
from ai.backend.cli.session.commands import owner_option
from ai.backend.cli.session.options import resources_option

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

_LIMIT = 20


@claim.command("create")
@click.argument("name")
@resources_option
@click.option(
    "--device-request",
    "device_requests",
    multiple=True,
    metavar="EXPRESSION",
    help="What its devices must be, as for sessions. Repeat for alternatives, the preferred first.",
)
@click.option(
    "--idle-timeout",
    metavar="TIME",
    help="Return the devices after so long without a session: seconds, or 30m, 2h, 1d; 0 for as long as allowed.",
)
@click.option("--group", "--project", "group_name", help="Group.  [default: BACKEND_GROUP]")
@click.option("--resource-group", "--scaling-group", "scaling_group", help="Resource group of its devices.")
@owner_option
async def create(api: AsyncSession, name: str, owner: str | None, **options: Any) -> Outcome:
    """Make the device claim NAME; the first session that uses it allocates its devices.

    \b
      backend.ai claim create gpus -r cuda.device=2
      backend.ai run --claim gpus python 'print(1)'
    """
    reply = await api.DeviceClaim.create(name, owner_access_key=owner, **options)
    screen_of().inform(f"next: backend.ai start --claim {name} IMAGE")
    return reply, f"the claim {name} of {describe_slots(reply['requested_slots'])} is made"


@claim.command("list", cls=ListCommand)
@click.option("--limit", type=click.IntRange(1, 1000), default=_LIMIT, show_default=True, help="How many at most.")
@click.option("--offset", type=click.IntRange(0), default=0, help="How many to skip.")
@owner_option
async def list_(api: AsyncSession, limit: int, offset: int, owner: str | None) -> None:
    """List device claims, the newest first."""
    page = await api.DeviceClaim.list(limit=limit, offset=offset, owner_access_key=owner)
    empty_hint = "There are no device claims here. `backend.ai claim create NAME -r SLOT=AMOUNT` makes one."
    screen_of().print_rows(page["items"], CLAIM_COLUMNS, empty_hint, describe=claim_row)


@claim.command("info")
@click.argument("name")
@owner_option
async def info(api: AsyncSession, name: str, owner: str | None) -> None:
    """Show the device claim NAME, a name or an id."""
    screen = screen_of()
    detail = await api.DeviceClaim(name, owner).info()
    if screen.is_json:
        screen.print_json(detail)
        return
    idle_timeout_s = detail["idle_timeout"]
    screen.print_facts(
        (
            ("name", detail["name"]),
            ("claim id", detail["id"]),
            ("status", claim_row(detail)["status"]),
            ("reason", detail["status_info"]),
            ("problem", detail["problem"]),
            ("requests", describe_slots(detail["requested_slots"])),
            ("device requests", "; ".join(detail["device_requests"])),
            ("devices", describe_devices(detail["devices"])),
            ("agent", detail["agent"]),
            ("sessions", claim_row(detail)["users"]),
            ("resource group", detail["scaling_group"]),
            ("project", detail["group_name"]),
            ("idle timeout", "none" if idle_timeout_s is None else f"{idle_timeout_s:g} s"),
            ("idle since", detail["idle_since"] and readable_time(detail["idle_since"])),
            ("created at", readable_time(detail["created_at"])),
        )
    )


@claim.command("release")
@click.argument("name")
@owner_option
async def release(api: AsyncSession, name: str, owner: str | None) -> Outcome:
    """Return the devices of the claim NAME; the next session that uses it allocates anew."""
    detail = await api.DeviceClaim(name, owner).release()
    return detail, f"the claim {detail['name']} holds no devices now"


@claim.command("delete")
@click.argument("name")
@owner_option
async def delete(api: AsyncSession, name: str, owner: str | None) -> Outcome:
    """Delete the claim NAME, with the end of the last session that uses it."""
    detail = await api.DeviceClaim(name, owner).delete()
    if detail["status"] == "DELETED":
        return detail, f"the claim {detail['name']} is deleted"
    session_names = claim_row(detail)["users"]
    return (
        detail,
        (
            f"the claim {detail['name']} is deleted with the end of its sessions"
            f"{': ' + session_names if session_names else ''}"
        ),
    )
