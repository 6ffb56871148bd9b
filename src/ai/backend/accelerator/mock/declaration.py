"""``mock-accelerator.toml``: which devices to pretend (spec 03-06, "Configuring the mock-accelerator plugin")."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ai.backend.common.errors import InvalidInput, InvalidName, PluginError
from ai.backend.common.names import check_slot_name
from ai.backend.plugin.settings import Size

FILE_NAME = "mock-accelerator.toml"
SEARCH_PATH = (Path(), Path("~/.config/backend.ai"), Path("/etc/backend.ai"))


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MockDevice(_Table):
    """One declared device."""

    mother_uuid: str = Field(min_length=1, max_length=128, description="Unique and stable id of the device.")
    model_name: str = Field(description="Model to report.")
    numa_node: int | None = Field(default=None, ge=0, description="NUMA node of the device.")
    subproc_count: int = Field(default=8, ge=1, description="Sub-processing cores, as streaming multiprocessors.")
    memory_size: Size = Field(default=2 * 2**30, ge=1, description="On-device memory.")
    is_mig_device: bool = Field(default=False, description="Whether it is a slice with a unique slot of its own.")
    is_healthy: bool = Field(default=True, description="Whether to report it as healthy.")

    @model_validator(mode="before")
    @classmethod
    def _spellings(cls, data: Any) -> Any:
        """The spec writes ``is_mig_devices``, the published examples ``is_mig_device``."""
        if isinstance(data, dict) and "is_mig_devices" in data:
            data = dict(data)
            data["is_mig_device"] = data.pop("is_mig_devices")
        return data


class NumberFormat(_Table):
    binary: bool = False
    round_length: int = Field(default=0, ge=0)


class SlotFormat(_Table):
    """How user interfaces print one subtype of the slot."""

    human_readable_name: str = ""
    description: str = ""
    display_unit: str = ""
    display_icon: str = ""
    number_format: NumberFormat = NumberFormat()


class Declaration(_Table):
    """The whole file."""

    slot_name: str = Field(default="mock", description="First part of the slot names.")
    device_plugin_name: str = Field(default="MockDevice", description="CUDADevice or MockDevice.")
    devices: tuple[MockDevice, ...] = Field(description="The devices to pretend.")
    attributes: dict[str, str] = Field(default_factory=dict, description="Versions and such, for people.")
    formats: dict[str, SlotFormat] = Field(default_factory=dict, description="Display data by subtype.")

    @field_validator("slot_name")
    @classmethod
    def _slot_name(cls, name: str) -> str:
        try:
            return check_slot_name(name)
        except InvalidName as e:
            raise ValueError(e.message) from None

    @field_validator("device_plugin_name")
    @classmethod
    def _kind(cls, name: str) -> str:
        if name not in ("CUDADevice", "MockDevice"):
            raise ValueError("known are CUDADevice and MockDevice")
        return name

    @model_validator(mode="after")
    def _distinct(self) -> Declaration:
        ids = [d.mother_uuid for d in self.devices]
        if len(ids) != len(set(ids)):
            raise ValueError("mother_uuid must be different for every device")
        return self


def default_declaration(devices: int = 4) -> Declaration:
    """What is pretended where nothing is declared: devices of 8 subprocessors and 2 GiB."""
    made = (
        MockDevice(mother_uuid=f"00000000-0000-0000-0000-{n:012}", model_name="Mock Device", numa_node=0)
        for n in range(devices)
    )
    return Declaration(devices=tuple(made))


def load_declaration(path: Path | None) -> Declaration | None:
    """Read the file named, or the first of the search path; None if there is none there.

    Raises:
        PluginError: the file cannot be read.
        InvalidInput: it is malformed; ``data`` names each key.
    """
    if path is None:
        candidates = (folder.expanduser() / FILE_NAME for folder in SEARCH_PATH)
        path = next((p for p in candidates if p.is_file()), None)
        if path is None:
            return None
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as e:
        raise PluginError(f"cannot read {path}: {e}") from None
    except tomllib.TOMLDecodeError as e:
        raise InvalidInput(f"{path} is not TOML: {e}") from None
    try:
        return Declaration.model_validate(data)
    except ValidationError as e:
        wrong = {".".join(map(str, p["loc"])): p["msg"] for p in e.errors()}
        first = next(iter(wrong.items()))
        raise InvalidInput(f"{path}: {first[0]}: {first[1]}", data=wrong) from None
