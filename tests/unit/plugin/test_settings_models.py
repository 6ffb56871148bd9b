"""A plugin's faulty settings model fails where the plugin is imported, which turns any error into PluginError."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ConfigDict
from pydantic.errors import PydanticSchemaGenerationError

from ai.backend.plugin.settings import PluginSettings, Settings


class Unsupported:
    """A type that pydantic has no schema for."""


def test_a_faulty_model_of_a_plugin_fails_when_it_is_defined() -> None:
    with pytest.raises(PydanticSchemaGenerationError):
        type("Faulty", (PluginSettings,), {"__annotations__": {"field": Unsupported}, "__module__": __name__})


def test_our_own_models_are_built_when_they_are_first_used() -> None:
    model: Any = type("Late", (Settings,), {"__annotations__": {"field": Unsupported}, "__module__": __name__})
    assert model.model_config["defer_build"]
    with pytest.raises(PydanticSchemaGenerationError):
        model.model_validate({})


def test_a_plugin_may_defer_its_model_itself() -> None:
    class Deferred(PluginSettings):
        model_config = ConfigDict(defer_build=True)
        field: int = 1

    assert Deferred.model_validate({}).field == 1
