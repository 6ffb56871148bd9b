"""Parses and validates the data file of a family of devices, see ``docs/reference/accelerators/sysfs.md``.

Attributes are paths relative to the entry that the device was found by, or to its PCI function after ``pci:``.
Templates are filled from ``{index}``, ``{name}``, ``{id}``, ``{pci}``, ``{rank}``, ``{model}`` and the names of
``[values]``.
"""

from __future__ import annotations

import re
import string
import tomllib
from collections.abc import Iterator
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from ai.backend.common.devices import PrecisionSupport
from ai.backend.common.errors import InvalidInput, InvalidName, PluginError
from ai.backend.common.names import check_env_name, check_slot_name
from ai.backend.plugin.settings import PluginSettings, Size, problems_of

FIELDS = frozenset({"index", "name", "id", "pci", "rank", "model"})
"""Placeholders that every device has; ``rank`` is its position among the devices of its workload."""
UNITS = Literal["bytes", "percent", "bps", "msec", "count", "celsius", "watt"]
_SAFE_PATH = re.compile(r"(?:pci:)?[^/\s][^\s]*")


class FamilyError(InvalidInput):
    """An error in a data file; the message names the file, the key and the fault."""


class Table(PluginSettings):
    """The base of all tables of a data file."""


def _check_attribute(path: str) -> str:
    if _SAFE_PATH.fullmatch(path) is None or ".." in path.split("/") or "**" in path:
        raise ValueError("write a path like device/status or pci:hwmon/hwmon*/temp1_input, without .. and **")
    return path


def _check_pattern(pattern: str) -> str:
    try:
        groups = re.compile(pattern).groups
    except re.error as e:
        raise ValueError(f"not a regular expression: {e}") from None
    if groups != 1:
        raise ValueError(f"put exactly one group ( ) around what is meant; there are {groups}")
    return pattern


def placeholders(template: str) -> set[str]:
    """Returns the names of the placeholders in a template, such as ``index`` in ``/dev/dri/card{index}``.

    Raises ValueError if the template is malformed.
    """
    names = set()
    for _, name, spec, conversion in string.Formatter().parse(template):
        if name is None:
            continue
        if spec or conversion or re.fullmatch(r"[a-z][a-z0-9_]*", name) is None:
            raise ValueError(f"{{{name}}} is not a placeholder; write {{index}} or a name of [values]")
        names.add(name)
    return names


def _check_template(template: str) -> str:
    placeholders(template)
    return template


def _check_device_path(path: str) -> str:
    if not path.startswith("/dev/") or ".." in path.split("/") or "**" in path:
        raise ValueError("a device node is below /dev/, without .. and **")
    return path


def _expand_short_form(value: Any) -> Any:
    return {"attribute": value} if isinstance(value, str) else value


Attribute = Annotated[
    str, Field(min_length=1), BeforeValidator(lambda v: _check_attribute(v) if isinstance(v, str) else v)
]
Template = Annotated[str, BeforeValidator(lambda v: _check_template(v) if isinstance(v, str) else v)]


class Value(Table):
    """Declares from which file of a device a value is read. A plain text stands for ``{attribute = TEXT}``."""

    attribute: Attribute | None = Field(default=None, description="The first file that matches is read.")
    name_of: Attribute | None = Field(default=None, description="The last part of where this path leads is taken.")
    pattern: Annotated[str, BeforeValidator(_check_pattern)] | None = Field(
        default=None, description="The one group of this regular expression is taken of what was read."
    )

    @model_validator(mode="after")
    def _check_one_source(self) -> Self:
        if (self.attribute is None) == (self.name_of is None):
            raise ValueError("give one of attribute and name-of")
        return self


Reading = Annotated[Value, BeforeValidator(_expand_short_form)]


class DeviceMatch(Table):
    """Declares where devices are found: entries of a class, functions on the PCI bus, or device nodes."""

    by: Literal["class", "pci", "dev"]
    class_name: str = Field(default="", alias="class", pattern=r"^[\w!-]*$", description="Name below /sys/class.")
    name: Annotated[str, BeforeValidator(_check_pattern)] = Field(
        default=r"[^0-9]*(\d+).*", description="Names of entries; the group is {index}."
    )
    glob: str = Field(default="", description='Device nodes, for `by = "dev"`.')
    vendor: str = Field(default="", pattern=r"^(0x[0-9a-f]{4})?$", description="PCI vendor, as 0x1da3.")
    pci_address: Reading | None = Field(default=None, description="PCI address, where the entry has no link `device`.")
    index: Reading | None = Field(default=None, description="{index}, where it is not in the name.")

    @model_validator(mode="after")
    def _check_complete(self) -> Self:
        key, criterion = {
            "class": ("class", self.class_name),
            "pci": ("vendor", self.vendor),
            "dev": ("glob", self.glob),
        }[self.by]
        if not criterion:
            raise ValueError(f'by = "{self.by}" needs the key {key}')
        if self.glob:
            _check_device_path(self.glob)
        return self


class Condition(Table):
    """Compares an attribute with expected values, without regard to case."""

    value: Reading
    is_one_of: tuple[str, ...] = Field(default=(), description="Good values.")
    is_none_of: tuple[str, ...] = Field(default=(), description="Bad values.")
    at_most: float | None = Field(default=None, description="The highest good number.")
    optional: bool = Field(default=False, description="Whether a missing attribute is good.")

    @model_validator(mode="after")
    def _check_comparison(self) -> Self:
        if sum((bool(self.is_one_of), bool(self.is_none_of), self.at_most is not None)) != 1:
            raise ValueError("give one of is-one-of, is-none-of and at-most")
        return self

    def fault(self, value_text: str) -> str | None:
        """Describes how a value breaks the condition; None if it holds."""
        lowercase_value = value_text.lower()
        if self.is_one_of:
            return (
                None
                if lowercase_value in {expected.lower() for expected in self.is_one_of}
                else f"is {value_text[:60]!r}"
            )
        if self.is_none_of:
            return (
                f"is {value_text[:60]!r}"
                if lowercase_value in {expected.lower() for expected in self.is_none_of}
                else None
            )
        try:
            return None if self.at_most is None or float(value_text) <= self.at_most else f"is {value_text[:60]}"
        except ValueError:
            return f"is not a number: {value_text[:60]!r}"


class Model(Table):
    """Describes one model of the family. A device has the first model whose PCI ids contain the device's id.

    A model without PCI ids fits every device.
    """

    name: str = Field(min_length=1, max_length=128)
    pci_devices: tuple[Annotated[str, Field(pattern=r"^0x[0-9a-f]{4}$")], ...] = ()
    memory: Size = Field(default=0, ge=0, description="Used where no attribute says it.")
    memory_type: str | None = None
    memory_bandwidth: float | None = Field(default=None, gt=0, description="GiB/s.")
    unit: str = Field(default="core", description="What the device's compute units are called.")
    cores: int = Field(default=0, ge=0)
    precisions: tuple[str, ...] = ()
    emulated_precisions: tuple[str, ...] = ()

    def precision_support(self) -> Iterator[tuple[str, PrecisionSupport]]:
        yield from ((format_name, PrecisionSupport.NATIVE) for format_name in self.precisions)
        yield from ((format_name, PrecisionSupport.EMULATED) for format_name in self.emulated_precisions)


class Node(Table):
    """Declares a device node that workloads get. The path may contain ``*`` for several device nodes."""

    path: Annotated[Template, BeforeValidator(_check_device_path)]
    permissions: str = Field(default="rw", pattern=r"^r?w?m?$")
    optional: bool = Field(default=False, description="Whether the device is usable without it.")


class Bind(Table):
    """Declares a path of the host that is mounted into workloads."""

    source: Annotated[Template, Field(pattern=r"^/.*$")]
    target: Annotated[Template, Field(pattern=r"^/.*$")] | None = None
    read_only: bool = True

    @model_validator(mode="after")
    def _check_target(self) -> Self:
        target = self.target or self.source
        if target.startswith(("/proc/", "/sys/", "/dev/")) or ".." in target.split("/"):
            raise ValueError(f"nothing can be mounted at {target}; sysfs is there, device nodes belong to [[devices]]")
        return self


class Metric(Table):
    """Declares a metric. Its value is the number read times ``scale``."""

    key: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    value: Reading
    unit: UNITS
    scale: float = 1.0
    capacity: float | Reading | None = Field(default=None, description="A number, or what is read times scale.")
    accumulated: bool = False
    together: Literal["sum", "max"] | None = Field(
        default=None, description="How devices make one number; default: max for celsius, else sum."
    )


class Family(Table):
    """Holds the whole data file of a family."""

    key: str
    name: str = Field(min_length=1, description="For people.")
    description: str = ""
    icon: str = "npu1"
    unit: str = "Device"
    facts: tuple[str, ...] = Field(default=(), description="Where the facts of this file come from.")
    unverified: tuple[str, ...] = Field(default=(), description="What of them is a guess.")
    find: DeviceMatch
    only_if: tuple[Condition, ...] = Field(default=(), description="Conditions for a device to be of this family.")
    id: Reading | None = Field(default=None, description="A serial number; else the PCI address is the id.")
    values: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], Reading] = Field(default_factory=dict)
    memory: Reading | None = Field(default=None, description="Device memory in bytes, where an attribute says it.")
    models: tuple[Model, ...] = Field(min_length=1)
    healthy_if: tuple[Condition, ...] = ()
    devices: tuple[Node, ...] = ()
    env: dict[str, Template | dict[Annotated[str, Field(pattern=r"^\d+$")], str]] = Field(default_factory=dict)
    mounts: tuple[Bind, ...] = ()
    resource_data: dict[str, Template] = Field(default_factory=dict)
    metrics: tuple[Metric, ...] = ()
    variant_namespace: str = Field(default="", max_length=64)
    kernel_module: str = Field(default="", pattern=r"^[\w-]*$", description="Whose version is the driver's.")

    @field_validator("key")
    @classmethod
    def _check_key(cls, key: str) -> str:
        try:
            if "." in key:
                raise ValueError("the key has no dot; the slot is <key>.device")
            return check_slot_name(key)
        except InvalidName as e:
            raise ValueError(e.message) from None

    @field_validator("env")
    @classmethod
    def _check_variables(cls, env: dict[str, Any]) -> dict[str, Any]:
        for name in env:
            try:
                check_env_name(name)
            except InvalidName as e:
                raise ValueError(e.message) from None
        return env

    @model_validator(mode="after")
    def _check_placeholders(self) -> Self:
        defined_names = FIELDS | self.values.keys()
        if shadowed_names := FIELDS & self.values.keys():
            raise ValueError(f"values.{min(shadowed_names)} has the name of a placeholder that every device has")
        template_of_key: dict[str, str | None] = {
            f"env.{name}": template for name, template in self.env.items() if isinstance(template, str)
        }
        template_of_key |= {f"resource-data.{name}": template for name, template in self.resource_data.items()}
        template_of_key |= {f"devices.{number}.path": node.path for number, node in enumerate(self.devices)}
        template_of_key |= {f"mounts.{number}.source": bind.source for number, bind in enumerate(self.mounts)}
        template_of_key |= {f"mounts.{number}.target": bind.target for number, bind in enumerate(self.mounts)}
        for where, template in template_of_key.items():
            if unknown := placeholders(template or "") - defined_names:
                raise ValueError(f"{where} names {{{min(unknown)}}}; known are {', '.join(sorted(defined_names))}")
        keys = [metric.key for metric in self.metrics]
        if len(keys) != len(set(keys)):
            raise ValueError("two metrics have one key")
        return self

    @property
    def slot(self) -> str:
        return f"{self.key}.device"

    @cached_property
    def prefix(self) -> str:
        """Returns the prefix of metric keys and, in capitals, of variables."""
        return re.sub(r"\W", "_", self.key)

    def model_of(self, pci_device: str) -> Model | None:
        """Returns the model of a PCI device id, None if it is not of this family."""
        return next(
            (model for model in self.models if not model.pci_devices or pci_device.lower() in model.pci_devices), None
        )


def parse_family(text: str, source: str) -> Family:
    """Parses the text of a data file. Raises FamilyError."""
    try:
        data = tomllib.loads(text)
        return Family.model_validate(data)
    except tomllib.TOMLDecodeError as e:
        raise FamilyError(f"{source} is not TOML: {e}") from None
    except ValidationError as e:
        problem_of_key = problems_of(e)
        key, message = next(iter(problem_of_key.items()))
        raise FamilyError(f"{source}: {f'{key}: ' if key else ''}{message}", data=problem_of_key) from None


def load_family(path: Path) -> Family:
    """Reads a data file. Raises PluginError if it cannot be read, FamilyError if it is malformed."""
    try:
        return parse_family(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as e:
        raise PluginError(f"cannot read {path}: {e}") from None


def packaged_names() -> list[str]:
    """Returns the keys of the families that come with the package."""
    files = resources.files("ai.backend.accelerator.sysfs").joinpath("data").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def packaged_family(key: str) -> Family:
    """Loads a family of the package. Raises FileNotFoundError for a key that does not come with the package."""
    file = resources.files("ai.backend.accelerator.sysfs").joinpath("data", f"{key}.toml")
    return parse_family(file.read_text(encoding="utf-8"), f"{key}.toml")
