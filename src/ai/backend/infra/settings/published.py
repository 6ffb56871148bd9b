"""Declares keys of published files (spec 03-02) that have no effect here, and values that are not supported."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from pydantic import AfterValidator, BaseModel, Field

log = logging.getLogger(__name__)
_REASON_KEY = "no-effect"


def unused_field(default: Any, reason: str, **constraints: Any) -> Any:
    """Returns the field of a key that has no effect; ``reason`` says why, after the name of the key and a colon."""
    return fixed_field(default, reason, json_schema_extra={_REASON_KEY: reason}, **constraints)


def fixed_field(default: Any, reason: str, **constraints: Any) -> Any:
    """Returns the settings field of a key that accepts only its default value, see :func:`accept_only`."""
    default_argument = {"default_factory": default} if callable(default) else {"default": default}
    return Field(**default_argument, description=f"Not used: {reason}.", **constraints)


def accept_only(*accepted: Any, because: str) -> AfterValidator:
    """Returns a validator that refuses all values of a setting except the given ones, with the text ``because``.

    Other values ask for missing features.
    """

    def check(value: Any) -> Any:
        if value not in accepted:
            raise ValueError(because)
        return value

    return AfterValidator(check)


def keys_without_effect(settings: BaseModel) -> Iterator[tuple[str, str]]:
    """Yields the keys in the file or the environment that have no effect, each with the reason."""
    for name in sorted(settings.model_fields_set):
        field, value = type(settings).model_fields[name], getattr(settings, name)
        key = field.alias or name
        if isinstance(field.json_schema_extra, dict) and _REASON_KEY in field.json_schema_extra:
            yield key, str(field.json_schema_extra[_REASON_KEY])
        elif isinstance(value, BaseModel):
            yield from ((f"{key}.{nested_key}", reason) for nested_key, reason in keys_without_effect(value))


def warn_of_keys_without_effect(settings: BaseModel) -> None:
    """Logs the name of each key that has no effect, when a daemon starts."""
    for key, reason in keys_without_effect(settings):
        log.warning("the setting %s has no effect: %s", key, reason)
