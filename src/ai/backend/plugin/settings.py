"""The base of a plugin's settings model."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from ai.backend.common.errors import InvalidQuantity
from ai.backend.common.slots import BinarySize, parse_quantity


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class PluginSettings(BaseModel):
    """Immutable, kebab-case (snake_case is read too), and an unknown key is an error that names it."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=_kebab, populate_by_name=True)


def _size(value: object) -> object:
    try:
        return int(BinarySize.parse(value)) if isinstance(value, str) else value
    except InvalidQuantity as e:
        raise ValueError(e.message) from None


def _quantity(value: object) -> object:
    try:
        return parse_quantity(value) if isinstance(value, str | int | float) else value
    except InvalidQuantity as e:
        raise ValueError(e.message) from None


Size = Annotated[int, BeforeValidator(_size)]
"""Bytes, written as a number or with a binary suffix: 512m."""
Quantity = Annotated[Decimal, BeforeValidator(_quantity)]
"""An exact number; a float is read by its shortest text."""
