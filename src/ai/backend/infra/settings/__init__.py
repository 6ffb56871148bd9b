"""Reads static settings of daemons from TOML and the environment (spec 03-01, "Local config")."""

from ai.backend.infra.settings.load import load_settings, search_path
from ai.backend.infra.settings.published import warn_of_keys_without_effect
from ai.backend.plugin.settings import Settings

__all__ = ["Settings", "load_settings", "search_path", "warn_of_keys_without_effect"]
