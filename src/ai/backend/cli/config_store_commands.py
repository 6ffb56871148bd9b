"""Commands on the shared configuration: `admin etcd get|set|delete`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.calling import call
from ai.backend.cli.lazy import Leaf, screen_of

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

_prefix = click.option("--prefix", "-p", is_flag=True, help="All keys at and below KEY.")


@click.command("get", cls=Leaf)
@click.argument("key")
@_prefix
def get(key: str, prefix: bool) -> None:
    """Show the value of KEY."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        value = await api.EtcdConfig.get(key, prefix=prefix)
        if screen.is_json:
            screen.json(value)
        elif value is None or value == {}:
            screen.say(f"{key} is not set.")
        else:
            screen.say(value if isinstance(value, str) else json.dumps(value, indent=2))

    call(screen, work)


@click.command("set", cls=Leaf)
@click.argument("key")
@click.argument("value")
def set_(key: str, value: str) -> None:
    """Set KEY to VALUE; a JSON object sets every key in it.

    Agents read settings of their plugins when they start:

      backend.ai admin etcd set config/plugins/accelerator/mock/allocation_mode fractional
    """
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        await api.EtcdConfig.set(key, _parsed(value))
        screen.say(f"{key} is set.")
        if screen.is_json:
            screen.json({"result": "ok"})

    call(screen, work)


def _parsed(value: str) -> Any:
    if not value.lstrip().startswith("{"):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as e:
        raise click.BadParameter(f"not a JSON object: {e}", param_hint="VALUE") from None


@click.command("delete", cls=Leaf)
@click.argument("key")
@_prefix
def delete(key: str, prefix: bool) -> None:
    """Remove KEY."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        await api.EtcdConfig.delete(key, prefix=prefix)
        screen.say(f"{key} is removed.")
        if screen.is_json:
            screen.json({"result": "ok"})

    call(screen, work)
