"""The hook of hatchling that puts the built web console into a wheel.

The variable BACKENDAI_CONSOLE decides what happens where the console cannot be built: `require` fails, `skip` does not
even try, and by default the wheel is made without it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "BACKENDAI_CONSOLE"
PLACE = "ai/backend/infra/console/bundle"


class ConsoleHook(BuildHookInterface[Any]):
    """Builds the console before a wheel is made. Editable installations have none: they find it in the cache."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the console's files to a wheel. Raises RuntimeError if it is required and cannot be built."""
        mode = os.environ.get(VARIABLE, "")
        if version == "editable" or mode == "skip":
            return
        bundle, reason = _build(Path(self.root))
        if bundle is not None:
            build_data["force_include"][str(bundle)] = PLACE
        elif mode == "require":
            raise RuntimeError(f"The web console is not built: {reason}")
        else:
            self.app.display_warning(f"The wheel gets no web console: {reason}")


def _build(root: Path) -> tuple[Path | None, str]:
    """Returns the folder of the bundle, or None and why there is none."""
    sources = root / "webui"
    if not (sources / "package-lock.json").is_file():
        return None, "its sources, webui/, are not here."
    sys.path.insert(0, str(root / "src"))
    try:
        from ai.backend.infra.console.build import build_bundle
        from ai.backend.infra.console.places import cache_folder
        from ai.backend.infra.console.programs import BuildFailed

        try:
            return build_bundle(sources, cache_folder(), report=lambda step: print(f"console: {step}", flush=True)), ""
        except BuildFailed as e:
            return None, str(e)
    finally:
        sys.path.remove(str(root / "src"))
