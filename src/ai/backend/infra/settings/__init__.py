"""Static settings of daemons: one pydantic model each, from TOML and the environment.

Source: spec 03-01 ("Local config"): files are named after the component and searched in the working directory,
``~/.config/backend.ai`` and ``/etc/backend.ai``.
"""

from ai.backend.infra.settings.load import load_settings, search_path
from ai.backend.infra.settings.reference import json_schema, reference_page, sample_toml
from ai.backend.plugin.settings import Settings

__all__ = ["Settings", "json_schema", "load_settings", "reference_page", "sample_toml", "search_path"]
