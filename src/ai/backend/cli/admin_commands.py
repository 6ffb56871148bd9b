"""Commands about the cluster: agents, keypairs, the manager, resource slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.calling import call
from ai.backend.cli.lazy import Leaf, screen_of
from ai.backend.cli.output import decoded, readable_amount

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

_AGENT_COLUMNS = (
    ("id", "Agent"), ("status", "Status"), ("scaling_group", "Resource Group"), ("used", "Used / Available"),
    ("runtime", "Runtime"), ("enforced", "Enforced"), ("watched", "Watched Only"), ("none", "Not Limited"),
)  # fmt: skip


def describe_agent(agent: dict[str, Any]) -> dict[str, Any]:
    """An agent with its slots and the enforcement of its limits in words."""
    available, occupied = decoded(agent.get("available_slots")) or {}, decoded(agent.get("occupied_slots")) or {}
    enforcement: dict[str, str] = decoded(agent.get("enforcement")) or {}

    def names(level: str) -> list[str]:
        return [limit for limit, how in enforcement.items() if how == level]

    def amount(slot: str, value: Any) -> str:
        return readable_amount(slot, value)

    used = [f"{slot} {amount(slot, occupied.get(slot, 0))}/{amount(slot, total)}" for slot, total in available.items()]
    return {
        **agent,
        "used": ", ".join(used),
        "runtime": " ".join(str(agent[key]) for key in ("runtime", "tier") if agent.get(key)),
        "enforced": names("enforced"),
        "watched": names("watched"),
        "none": names("none"),
    }


@click.command("list", cls=Leaf)
@click.option("-s", "--status", default="ALIVE", show_default=True, help="Only agents of this status.")
@click.option("--scaling-group", "--resource-group", "scaling_group", help="Only agents of this resource group.")
def agent_list(status: str, scaling_group: str | None) -> None:
    """List agents with their resources, and which limits they really enforce."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        items: list[dict[str, Any]] = []
        while True:
            page = await api.Agent.paginated_list(status.upper(), scaling_group, page_offset=len(items))
            items += page.items
            if not page.items or len(items) >= page.total_count:
                break
        if screen.is_json:
            screen.json({"count": len(items), "items": items})
        elif not items:
            screen.say(
                f"There is no agent with status {status}, or these keys are not an administrator's (env-admin.sh)."
            )
        else:
            screen.table([describe_agent(item) for item in items], _AGENT_COLUMNS)

    call(screen, work)


@click.command("info", cls=Leaf)
@click.argument("agent_id")
def agent_info(agent_id: str) -> None:
    """Show the agent AGENT_ID."""
    screen = screen_of()

    async def work(api: AsyncSession) -> int:
        found = await api.Agent.detail(agent_id)
        if found is None:
            screen.error(f"there is no agent {agent_id}; `backend.ai admin agent list` names them", code="not-found")
            return 1
        if screen.is_json:
            screen.json(found)
        else:
            screen.facts((name.replace("_", " "), decoded(value)) for name, value in describe_agent(found).items())
        return 0

    call(screen, work)


@click.command("info", cls=Leaf)
def keypair_info() -> None:
    """Show your own keypair."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        found = await api.KeyPair.info()
        if screen.is_json:
            screen.json(found)
        else:
            screen.facts((name.replace("_", " "), value) for name, value in found.items())

    call(screen, work)


@click.command("list", cls=Leaf)
def keypair_list() -> None:
    """List keypairs."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        page = await api.KeyPair.paginated_list(page_size=100)
        if screen.is_json:
            screen.json({"count": len(page.items), "total_count": page.total_count, "items": page.items})
        else:
            screen.table(page.items, [(name, name.replace("_", " ").title()) for name in page.fields])

    call(screen, work)


@click.command("status", cls=Leaf)
def manager_status() -> None:
    """Show whether the manager takes sessions, and how many it has."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        found = await api.Manager.status()
        if screen.is_json:
            screen.json(found)
        else:
            screen.facts((name.replace("_", " "), value) for name, value in found.items())

    call(screen, work)


@click.command("query-slots", cls=Leaf)
def query_slots() -> None:
    """List the resource slots of the cluster."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        slots = await api.Resource.list_slots()
        if screen.is_json:
            screen.json(slots)
        else:
            screen.facts(slots.items())

    call(screen, work)


@click.command("presets", cls=Leaf)
def presets() -> None:
    """List resource presets."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        found = (await api.Resource.list_presets()).get("presets") or []
        if screen.is_json:
            screen.json(found)
        elif found:
            screen.table(found, [("name", "Name"), ("resource_slots", "Resources"), ("shared_memory", "Shared Memory")])
        else:
            screen.say("There are no presets.")

    call(screen, work)
