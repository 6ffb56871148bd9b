"""Reads ``mock-accelerator.toml``, the devices to simulate (spec 03-06), and the plugin's settings.

It has the fields of the spec, and links, variants, partitions, scripted metrics and faults besides; a commented example
is ``docs/examples/mock-accelerator.toml``.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ai.backend.accelerator.mock.faults import Fault
from ai.backend.accelerator.mock.metrics import Script
from ai.backend.common.devices import AllocationStrategy, LinkKind, PrecisionSupport, VariantMatchMode
from ai.backend.common.errors import BackendError, InvalidInput, InvalidName
from ai.backend.common.names import check_slot_name
from ai.backend.plugin.settings import PluginSettings, Quantity, Size, problems_of, read_toml

FILE_NAME = "mock-accelerator.toml"
CONTROL_NAME = "mock-control.toml"
SEARCH_PATH = (Path(), Path("~/.config/backend.ai"), Path("/etc/backend.ai"))
MAX_DEVICES = 4096
CUDA_DEVICE = "CUDADevice"
M = TypeVar("M", bound=BaseModel)


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Partition(_Table):
    """A kind of partition that a device can be cut into at run time."""

    name: str = Field(pattern=r"^[a-z0-9.+-]{1,32}$", description="Name of the profile, such as 1g.10gb.")
    memory_size: Size = Field(ge=2**30, description="Its memory; the slot is named after it: device:10g-mig.")
    subproc_count: int = Field(default=1, ge=1, description="Its sub-processing cores.")
    max: int = Field(default=1, ge=1, le=64, description="How many of it fit into the device.")


class MockDevice(_Table):
    """Declares a mock device, or ``count`` mock devices with equal properties."""

    mother_uuid: str = Field(min_length=1, max_length=100, description="Unique and stable id of the device.")
    model_name: str = Field(description="Model to report.")
    count: int = Field(default=1, ge=1, le=1024, description="So many of it; the ids are then <mother_uuid>-0, ....")
    numa_node: int | tuple[int, ...] | None = Field(
        default=None, description="NUMA node; a list spreads `count` devices over them in equal runs."
    )
    subproc_count: int = Field(default=8, ge=1, description="Sub-processing cores, as streaming multiprocessors.")
    memory_size: Size = Field(default=2 * 2**30, ge=1, description="On-device memory.")
    memory_type: str | None = Field(default=None, description="Such as HBM3.")
    memory_bandwidth: float | None = Field(default=None, gt=0, description="GiB/s.")
    compute_units: dict[str, int] = Field(default_factory=dict, description="Name -> count; default: subproc.")
    precisions: dict[str, PrecisionSupport] = Field(default_factory=dict, description="Format -> native, emulated.")
    is_mig_device: bool = Field(default=False, description="Whether it is a slice with a unique slot of its own.")
    offers: tuple[str, ...] = Field(
        default=(), description="Subtypes of one device that hide each other: device, shares, 10g-mig; default: one."
    )
    partitions: tuple[Partition, ...] = Field(default=(), description="What it can be cut into at run time.")
    is_healthy: bool = Field(default=True, description="Whether to report it as healthy.")
    is_attached: bool = Field(default=True, description="False: it is in another box until it is attached.")
    variants: dict[str, dict[str, str | tuple[str, ...]]] = Field(
        default_factory=dict, description="Namespace -> feature -> value or values (BEP-1000)."
    )
    metrics: dict[Literal["mem", "util", "power", "temperature"], Script] = Field(
        default_factory=dict, description="Scripts in the metric's own unit; default: a triangle of one minute."
    )

    @model_validator(mode="before")
    @classmethod
    def _accept_spellings(cls, data: Any) -> Any:
        """Accepts ``is_mig_devices``, as the spec writes ``is_mig_device``."""
        if isinstance(data, dict) and "is_mig_devices" in data:
            data = dict(data)
            data["is_mig_device"] = data.pop("is_mig_devices")
        return data

    @field_validator("numa_node")
    @classmethod
    def _check_nodes(cls, value: int | tuple[int, ...] | None) -> int | tuple[int, ...] | None:
        nodes = value if isinstance(value, tuple) else () if value is None else (value,)
        if value == () or any(node < 0 for node in nodes):
            raise ValueError("a node is a number from 0 on")
        return value

    @field_validator("offers")
    @classmethod
    def _check_subtypes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for subtype in value:
            memory_gb, _, trailing_text = subtype.partition("g-mig")
            if subtype not in ("device", "shares") and (
                trailing_text or not memory_gb.isdigit() or "g-mig" not in subtype
            ):
                raise ValueError(f"{subtype!r} is not device, shares or such as 10g-mig")
        if len(set(value)) != len(value):
            raise ValueError("a subtype occurs twice")
        return value

    def single_devices(self) -> list[MockDevice]:
        """Returns ``count`` devices, each with an id and a node of its own."""
        nodes = self.numa_node if isinstance(self.numa_node, tuple) else (self.numa_node,)
        return [
            self.model_copy(
                update={
                    "mother_uuid": f"{self.mother_uuid}-{number}" if self.count > 1 else self.mother_uuid,
                    "numa_node": nodes[number * len(nodes) // self.count],
                    "count": 1,
                }
            )
            for number in range(self.count)
        ]

    @property
    def node(self) -> int | None:
        """Returns the NUMA node of an expanded device."""
        return self.numa_node if isinstance(self.numa_node, int) else None


class Link(_Table):
    """Declares the link between two mock devices, in both directions. It takes precedence over ``topology``."""

    a: str = Field(description="Id of one device.")
    b: str = Field(description="Id of the other.")
    kind: LinkKind = Field(description="direct, pcie-switch, pcie-root, numa or system.")
    bandwidth: float | None = Field(default=None, gt=0, description="GiB/s.")


class Feature(_Table):
    """Declares how a requested value is compared with a variant feature of the mock devices."""

    match: VariantMatchMode = VariantMatchMode.EXACT
    multi_value: bool = False
    values: tuple[str, ...] = ()


class NumberFormat(_Table):
    binary: bool = False
    round_length: int = Field(default=0, ge=0)


class SlotFormat(_Table):
    """The format in which user interfaces print one subtype of the slot."""

    human_readable_name: str = ""
    description: str = ""
    display_unit: str = ""
    display_icon: str = ""
    number_format: NumberFormat = NumberFormat()


class Control(_Table):
    """Holds the values that can change while the plugin runs: ``mock-control.toml`` beside the declaration."""

    unhealthy: dict[str, str] = Field(
        default_factory=dict, description="Device id, or * for all -> why it counts as failed."
    )
    faults: tuple[Fault, ...] = Field(default=(), description="Calls that go wrong; counted from each change on.")


class Declaration(Control):
    """Holds the whole declaration file of mock devices."""

    slot_name: str = Field(default="mock", description="First part of the slot names.")
    device_plugin_name: str = Field(
        default="MockDevice",
        description="MockDevice, or CUDADevice: sessions then have the variables of CUDA's devices.",
    )
    devices: tuple[MockDevice, ...] = Field(description="The devices to pretend.")
    topology: Literal["nvlink-all", "nvlink-pairs", "pcie-tree"] | None = Field(
        default=None, description="Links of all devices, in the order in which they are declared."
    )
    links: tuple[Link, ...] = Field(default=(), description="Links of single pairs.")
    variants: dict[str, dict[str, Feature]] = Field(
        default_factory=dict, description="Namespace -> feature -> how it is compared; default: exactly."
    )
    attributes: dict[str, str] = Field(default_factory=dict, description="Versions and such, for people.")
    formats: dict[str, SlotFormat] = Field(default_factory=dict, description="Display data by subtype.")

    @field_validator("slot_name")
    @classmethod
    def _check_slot_name(cls, name: str) -> str:
        try:
            return check_slot_name(name)
        except InvalidName as e:
            raise ValueError(e.message) from None

    @field_validator("device_plugin_name")
    @classmethod
    def _check_plugin_name(cls, name: str) -> str:
        if name not in (CUDA_DEVICE, "MockDevice"):
            raise ValueError("known are CUDADevice and MockDevice")
        return name

    @model_validator(mode="after")
    def _check_consistent(self) -> Declaration:
        if sum(device.count for device in self.devices) > MAX_DEVICES:
            raise ValueError(f"more than {MAX_DEVICES} devices")
        ids = [device.mother_uuid for device in self.single_devices()]
        if len(ids) != len(set(ids)):
            raise ValueError("mother_uuid must be different for every device")
        for link in self.links:
            if link.a == link.b or not {link.a, link.b} <= set(ids):
                raise ValueError(f"links: {link.a} and {link.b} are not two devices of this file")
        return self

    def single_devices(self) -> list[MockDevice]:
        """Returns every single device in order."""
        return [device for declared_device in self.devices for device in declared_device.single_devices()]


def default_declaration(device_count: int = 4) -> Declaration:
    """Returns the declaration used if there is none: devices of 8 subprocessors and 2 GiB."""
    devices = (
        MockDevice(mother_uuid=f"00000000-0000-0000-0000-{number:012}", model_name="Mock Device", numa_node=0)
        for number in range(device_count)
    )
    return Declaration(devices=tuple(devices))


def find_declaration(path: Path | None) -> Path | None:
    """Returns the declaration file: ``path``, else the first that exists on the search path; None without a file."""
    if path is not None:
        return path
    candidates = (folder.expanduser() / FILE_NAME for folder in SEARCH_PATH)
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def declared_slot(path: Path | None) -> str:
    """Returns the slot name in the declaration file, or ``mock`` without one. Looks for the file if ``path`` is None.

    The shared configuration has the plugin's settings under this name (spec 03-06). The plugin itself reports an
    unreadable file.
    """
    declaration = find_declaration(path)
    try:
        return str(read_toml(declaration).get("slot_name", "mock")) if declaration is not None else "mock"
    except BackendError:
        return "mock"


def read_table(path: Path, model: type[M]) -> M:
    """Reads a TOML file into a model. Raises PluginError if it cannot be read, InvalidInput if it is malformed: message
    and ``data`` name each key."""
    data = read_toml(path)
    try:
        return model.model_validate(data)
    except ValidationError as e:
        problem_of_key = {key or "file": problem for key, problem in problems_of(e).items()}
        problems = "; ".join(f"{key}: {problem}" for key, problem in problem_of_key.items())
        raise InvalidInput(f"{path}: {problems}", data=problem_of_key) from None


class MockSettings(PluginSettings):
    """Settings of the mock plugin (spec 03-06, peer facts 2.4)."""

    allocation_mode: Literal["discrete", "fractional"] = Field(
        default="discrete", description="Whole devices (<slot>.device) or parts of them (<slot>.shares)."
    )
    unit_mem: Size = Field(default=2 * 2**30, ge=1, description="Device memory of 1.0 share.")
    unit_proc: int = Field(default=8, ge=1, description="Sub-processors of 1.0 share.")
    quantum_size: Quantity = Field(default=Decimal("0.01"), gt=0, le=1, description="Smallest step of a share.")
    strategy: AllocationStrategy = Field(
        default=AllocationStrategy.EVENLY, description="How requests are spread over devices."
    )
    shareable: bool = Field(
        default=False, description="Whether one device may serve several sessions of one device claim at once."
    )
    device_mask: tuple[str, ...] = Field(default=(), description="Ids of devices to leave out.")
    config_path: Path | None = Field(
        default=None, description="The declaration to read; default: mock-accelerator.toml on the search path."
    )
    control_path: Path | None = Field(
        default=None,
        description="What is read again when it changes; default: mock-control.toml beside the declaration.",
    )
    state_path: Path | None = Field(
        default=None, description="Where partitions and the like are kept; default: nowhere, a restart forgets them."
    )
    images_dir: Path | None = Field(
        default=None, description="Folder of images (NAME.bit) that sessions may have loaded; default: none may."
    )
    default_devices: int = Field(
        default=4, ge=0, le=1024, description="How many devices to pretend where nothing is declared."
    )
