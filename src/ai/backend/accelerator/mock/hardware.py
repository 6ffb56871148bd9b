"""Simulates the state that real devices keep by themselves, also while no agent runs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ai.backend.common.errors import PluginError


@dataclass
class Hardware:
    """The state of all devices, by device id.

    Attributes:
        partitions: partition id -> [device id, name of the profile].
        off: devices without power.
        images: device id -> the image that is loaded.
        attached: those of another box that are attached here.
        in_use: device id -> the kernels that hold it.
        resets: device id -> how often it was reset.
    """

    partitions: dict[str, list[str]] = field(default_factory=dict)
    off: list[str] = field(default_factory=list)
    images: dict[str, str] = field(default_factory=dict)
    attached: list[str] = field(default_factory=list)
    in_use: dict[str, list[str]] = field(default_factory=dict)
    resets: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path | None) -> Hardware:
        """Raises PluginError: the file cannot be used."""
        if path is None or not path.exists():
            return cls()
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as e:
            raise PluginError(f"the state of the mock hardware in {path} cannot be used: {e}") from None

    def save(self, path: Path | None) -> None:
        """Write it whole. Raises PluginError."""
        if path is None:
            return
        new = path.with_name(path.name + ".new")
        try:
            new.write_text(json.dumps(asdict(self)), encoding="utf-8")
            new.replace(path)
        except OSError as e:
            raise PluginError(f"the state of the mock hardware cannot be written: {e}") from None
