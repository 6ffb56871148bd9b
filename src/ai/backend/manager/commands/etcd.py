"""Implements `backend.ai mgr etcd`, which reads and changes the shared configuration.

See spec 03-02, "Global configuration".
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote as percent_quote
from urllib.parse import unquote as percent_unquote

import click

from ai.backend.infra.config_store import GLOBAL, ConfigScope, ConfigStore, ScopeKind
from ai.backend.manager.commands.running import read_json, run_on_config
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.system.configuration import flatten_value, nest_values

_SCOPE_KINDS = {"global": ScopeKind.GLOBAL, "sgroup": ScopeKind.RESOURCE_GROUP, "node": ScopeKind.NODE}


def _parse_scope(_: click.Context, __: click.Parameter, value: str) -> ConfigScope:
    kind_word, _separator, name = value.partition(":")
    if kind_word not in _SCOPE_KINDS or (kind_word == "global") == bool(name):
        raise click.BadParameter("global, sgroup:NAME or node:AGENT")
    return GLOBAL if kind_word == "global" else ConfigScope(_SCOPE_KINDS[kind_word], name)


_scope_option = click.option(
    "-s",
    "--scope",
    default="global",
    show_default=True,
    callback=_parse_scope,
    metavar="SCOPE",
    help="global, sgroup:NAME (a resource group) or node:AGENT.",
)


@click.group("etcd")
def etcd() -> None:
    """The shared configuration: in etcd, or where the settings name none, in the database."""


@etcd.command("get")
@click.argument("key")
@click.option("--prefix", is_flag=True, help='What is at and below KEY, as JSON that put-json reads; "" is all.')
@_scope_option
@click.pass_obj
def get(settings: ManagerSettings, key: str, prefix: bool, scope: ConfigScope) -> None:
    """Print the value of KEY."""
    if prefix:
        values = run_on_config(settings, lambda store: store.get_prefix(key.rstrip("/"), scopes=(scope,)))
        click.echo(json.dumps(nest_values(key, values), indent=2, ensure_ascii=False))
        return
    value = run_on_config(settings, lambda store: store.get(key, scopes=(scope,)))
    if value is None:
        raise click.ClickException(f"{key} is not set")
    click.echo(value)


@etcd.command("put")
@click.argument("key")
@click.argument("value")
@_scope_option
@click.pass_obj
def put(settings: ManagerSettings, key: str, value: str, scope: ConfigScope) -> None:
    """Set KEY to VALUE."""
    run_on_config(settings, lambda store: store.put_many({key: value}, scope=scope))


@etcd.command("put-json")
@click.argument("key")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@_scope_option
@click.pass_obj
def put_json(settings: ManagerSettings, key: str, file: Path, scope: ConfigScope) -> None:
    """Set every key in the JSON object in FILE (- is standard input), below KEY; all or none."""
    json_value = read_json(file)
    if not isinstance(json_value, dict):
        raise click.ClickException(f"{file} holds no JSON object")

    async def put_values(store: ConfigStore) -> int:
        flat_values = dict(flatten_value(key, json_value))
        if flat_values:
            await store.put_many(flat_values, scope=scope)
        return len(flat_values)

    click.echo(f"{run_on_config(settings, put_values)} keys were set", err=True)


@etcd.command("delete")
@click.argument("key")
@click.option("--prefix", is_flag=True, help='All at and below KEY; "" is all.')
@_scope_option
@click.pass_obj
def delete(settings: ManagerSettings, key: str, prefix: bool, scope: ConfigScope) -> None:
    """Remove KEY."""
    count = run_on_config(settings, lambda store: store.delete(key, scope=scope, prefix=prefix))
    click.echo(f"{count} keys were removed", err=True)


@etcd.command("move-subtree")
@click.argument("old")
@click.argument("new")
@_scope_option
@click.pass_obj
def move_subtree(settings: ManagerSettings, old: str, new: str, scope: ConfigScope) -> None:
    """Replace the prefix OLD of all keys at and below it by NEW. If it is interrupted, run it again."""
    old_prefix, new_prefix = old.rstrip("/"), new.rstrip("/")
    if (
        not old_prefix
        or not new_prefix
        or f"{new_prefix}/".startswith(f"{old_prefix}/")
        or f"{old_prefix}/".startswith(f"{new_prefix}/")
    ):
        raise click.ClickException("OLD and NEW must be two places, and neither below the other")

    async def move_keys(store: ConfigStore) -> int:
        values = await store.get_prefix(old_prefix, scopes=(scope,))
        if values:
            await store.put_many(
                {new_prefix + key[len(old_prefix) :]: value for key, value in values.items()}, scope=scope
            )
            await store.delete(old_prefix, scope=scope, prefix=True)
        return len(values)

    click.echo(f"{run_on_config(settings, move_keys)} keys were moved", err=True)


@etcd.command("quote")
@click.argument("text")
def quote(text: str) -> None:
    """Percent-encode TEXT for use as a part of a key."""
    click.echo(percent_quote(text, safe=""))


@etcd.command("unquote")
@click.argument("text")
def unquote(text: str) -> None:
    """Decode a text that `quote` has encoded."""
    click.echo(percent_unquote(text))
