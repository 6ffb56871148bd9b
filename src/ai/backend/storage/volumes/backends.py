"""Loads the classes of volumes and object storages."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from ai.backend.common.errors import InvalidInput, PluginError


def load_class(name: str, base: Any, built_in: Mapping[str, str], *, kind: str) -> Any:
    """Returns a subclass of ``base`` by the name of a built-in backend or ``package.module:Class``.

    Raises:
        InvalidInput: the backend does not exist.
        PluginError: it is no subclass of ``base``, or written for another ``spi_version``.
    """
    module, colon, attribute = built_in.get(name, name).partition(":")
    if not colon:
        raise InvalidInput(f"There is no {kind} backend {name!r}; built in are {', '.join(built_in)}.")
    try:
        backend = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as e:
        raise InvalidInput(f"The {kind} backend {name!r} cannot be loaded: {e}.") from None
    is_backend = inspect.isclass(backend) and issubclass(backend, base)
    if not is_backend:
        raise PluginError(f"{name!r} is no {kind} backend.")
    if backend.spi_version != base.spi_version:
        raise PluginError(f"{name!r} is written for version {backend.spi_version} of the SPI, not {base.spi_version}.")
    return backend
