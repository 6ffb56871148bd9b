"""Lists the settings of this manager that are in force, and the permissions of roles, for operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from pydantic import BaseModel, SecretStr
from pydantic_core import PydanticUndefined, to_jsonable_python

from ai.backend.infra.settings.published import keys_without_effect

HIDDEN = "********"
_SECRET_WORDS = ("password", "secret", "token", "private", "dsn", "credential")


class SettingInForce(msgspec.Struct, frozen=True, kw_only=True):
    """A setting of this manager.

    Attributes:
        key: its path in the file, with dots.
        value, default: as JSON; :data:`HIDDEN` in place of a secret that is set.
        is_set: whether the file or the environment names it.
        without_effect: why nothing reads it; empty for a setting that has effect.
    """

    key: str
    value: Any
    default: Any
    is_set: bool
    description: str
    without_effect: str


def settings_in_force(settings: BaseModel) -> list[SettingInForce]:
    """Returns every setting of this manager; settings of inner tables are named by their paths."""
    reason_of_key = dict(keys_without_effect(settings))
    return list(_walk_settings(settings, "", reason_of_key))


def _walk_settings(settings: BaseModel, prefix: str, reason_of_key: dict[str, str]) -> Iterator[SettingInForce]:
    for name, field in type(settings).model_fields.items():
        key, value = f"{prefix}{field.alias or name}", getattr(settings, name)
        if isinstance(value, BaseModel):
            yield from _walk_settings(value, f"{key}.", reason_of_key)
            continue
        default = field.get_default(call_default_factory=True, validated_data={})
        description = field.description or ""
        is_unused = description.startswith("Not used: ")
        yield SettingInForce(
            key=key,
            value=_printable_value(key, value),
            default=None if default is PydanticUndefined else _printable_value(key, default),
            is_set=name in settings.model_fields_set,
            description=description,
            without_effect=reason_of_key.get(key, description.removeprefix("Not used: ") if is_unused else ""),
        )


def _printable_value(key: str, value: Any) -> Any:
    """Converts the value of a setting to JSON. Whatever may hold a secret is hidden: by its type, its name, or a
    password in a URL.
    """
    if isinstance(value, SecretStr):
        return HIDDEN if value.get_secret_value() else ""
    if any(secret_word in key.lower() for secret_word in _SECRET_WORDS):
        return HIDDEN if value not in (None, "", [], {}) and not isinstance(value, bool | int | float) else value
    if isinstance(value, dict | list):
        return _printable_items(value)
    if isinstance(value, str) and "@" in value and "://" in value:
        return HIDDEN
    return to_jsonable_python(value, fallback=str)


def _printable_items(value: dict[Any, Any] | list[Any]) -> Any:
    if isinstance(value, dict):
        return {str(key): _printable_value(str(key), item) for key, item in value.items()}
    return [_printable_value("", item) for item in value]
