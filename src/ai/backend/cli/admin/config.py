"""Commands on the shared configuration: `admin etcd get|set|delete`."""

from __future__ import annotations

import json
from typing import Any

import click

from ai.backend.cli.framework.lazy import Leaf
from ai.backend.cli.framework.objects import change, print_reply

_prefix = click.option("--prefix", "-p", is_flag=True, help="All keys at and below KEY.")


@click.command("get", cls=Leaf)
@click.argument("key")
@_prefix
def get(key: str, prefix: bool) -> None:
    """Show the value of KEY."""

    def describe(value: Any) -> str:
        if value is None or value == {}:
            return f"{key} is not set."
        return value if isinstance(value, str) else json.dumps(value, indent=2)

    print_reply(lambda api: api.EtcdConfig.get(key, prefix=prefix), describe)


@click.command("set", cls=Leaf)
@click.argument("key")
@click.argument("value")
def set_(key: str, value: str) -> None:
    """Set KEY to VALUE; a JSON object sets every key in it.

    Agents read settings of their plugins when they start:

      backend.ai admin etcd set config/plugins/accelerator/mock/allocation_mode fractional
    """
    change(lambda api: api.EtcdConfig.set(key, _parsed(value)), {"result": "ok"}, f"{key} is set.")


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
    change(lambda api: api.EtcdConfig.delete(key, prefix=prefix), {"result": "ok"}, f"{key} is removed.")
