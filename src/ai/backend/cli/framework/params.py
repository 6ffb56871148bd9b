"""Parsers of option values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click


def json_value(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Any:
    """Parse an option that takes JSON."""
    try:
        return json.loads(value) if value is not None else None
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}") from error


def json_option(*names: str, **settings: Any) -> Callable[[Any], Any]:
    return click.option(*names, metavar="JSON", callback=json_value, **settings)


def pair(text: str) -> tuple[str, str]:
    """Read ``KEY=VALUE``."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE")
    return key, value
