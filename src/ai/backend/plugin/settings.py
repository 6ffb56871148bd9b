"""Defines the base of every settings model, and types of values in settings (sizes and quantities)."""

from __future__ import annotations

import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from ai.backend.common.errors import InvalidInput, InvalidQuantity, PluginError
from ai.backend.common.slots import BinarySize, parse_quantity

_MAX_FILE_BYTES = 1 << 20
NO_SUCH_KEY = "there is no such key"
_MESSAGES = {"extra_forbidden": NO_SUCH_KEY, "missing": "it is missing"}


def kebab(name: str) -> str:
    """Returns the key of a field in a file of settings."""
    return name.replace("_", "-")


class Settings(BaseModel):
    """Base of a settings model: frozen, kebab-case keys (snake_case is read too), unknown keys refused by name.

    Give each field a description with its unit; sample, schema and reference page are made from it.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=kebab,
        populate_by_name=True,
        defer_build=True,  # a table is built with the file that holds it, and not at all if nobody reads that file
    )


class PluginSettings(Settings):
    """Base of the settings model of a plugin."""

    model_config = ConfigDict(defer_build=False)  # a faulty model fails with the import of its plugin


def read_toml(path: Path) -> dict[str, Any]:
    """Returns the parsed content of a TOML file of settings, which has at most 1 MiB.

    Raises PluginError: it cannot be read, is no regular file (a device or a pipe may have no end), or is too large;
    InvalidInput: it is not TOML.
    """
    try:
        if path.exists() and not path.is_file():
            raise PluginError(f"cannot read {path}: it is no regular file")
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            raise PluginError(f"cannot read {path}: it is larger than 1 MiB")
        return tomllib.loads(content.decode())
    except OSError as e:
        raise PluginError(f"cannot read {path}: {e.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as e:
        raise InvalidInput(f"{path} is not TOML: {e}") from None


def problems_of(error: ValidationError) -> dict[str, str]:
    """Returns the fault of each key of settings: ``{"devices.0.colour": "there is no such key"}``.

    The key ``""`` is the whole table.
    """
    return {
        ".".join(map(str, error_details["loc"])): _MESSAGES.get(error_details["type"])
        or error_details["msg"].removeprefix("Value error, ")
        for error_details in error.errors()
    }


def _parse_size(value: object) -> object:
    try:
        return int(BinarySize.parse(value)) if isinstance(value, str) else value
    except InvalidQuantity as e:
        raise ValueError(e.message) from None


def _parse_quantity(value: object) -> object:
    try:
        return parse_quantity(value) if isinstance(value, str | int | float) else value
    except InvalidQuantity as e:
        raise ValueError(e.message) from None


Size = Annotated[int, BeforeValidator(_parse_size)]
"""Bytes, written as a number or with a binary suffix: 512m."""
Quantity = Annotated[Decimal, BeforeValidator(_parse_quantity)]
"""An exact number; a float is read by its shortest text."""
