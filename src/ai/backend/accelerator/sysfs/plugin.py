"""Defines plugin classes for devices that data files describe: one for each family, and one for files of operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, Field

from ai.backend.accelerator.sysfs.family import Family, FamilyError, Metric, Value, load_family
from ai.backend.accelerator.sysfs.scan import Entry, driver_version, fill, scan_family
from ai.backend.common.devices import SlotDisplay, VariantFeature, VariantMatchMode, VariantNamespace
from ai.backend.common.ids import DeviceName, SlotName
from ai.backend.common.states import SlotType
from ai.backend.common.structs import replace
from ai.backend.plugin.accelerator import Mount, NodeInfo, Workload, WorkloadConfig
from ai.backend.plugin.sysfs.base import Raw, ScannedDevice, TreePlugin, TreeSettings
from ai.backend.plugin.sysfs.pci import pci_at
from ai.backend.plugin.sysfs.tree import Missing, Unreadable, parse_number

FEATURES = (
    VariantFeature(name="model"),
    VariantFeature(name="memory_type"),
    VariantFeature(name="memory_gib", match_mode=VariantMatchMode.MINIMUM),
    VariantFeature(name="driver_version", match_mode=VariantMatchMode.MINIMUM),
    VariantFeature(name="precision", multi_value=True),
)
"""The variant features of each device, if its family names a ``variant-namespace``."""


class SysfsSettings(TreeSettings):
    """Settings of the plugin ``sysfs`` and of every family's plugin."""

    families: tuple[Path, ...] = Field(
        default=(), description="Data files to use; a family's own plugin takes one of its own key instead of its own."
    )


class SysfsPlugin(TreePlugin):
    """Serves devices as data files describe them. This class itself serves the files that its settings name."""

    key: ClassVar[DeviceName] = DeviceName("sysfs")
    version: ClassVar[str] = "1"
    settings_model: ClassVar[type[BaseModel] | None] = SysfsSettings
    key_is_slot_prefix: ClassVar[bool] = False
    packaged: ClassVar[Family | None] = None
    """The family that a subclass comes with."""

    def __init__(self, settings: BaseModel | None = None) -> None:
        super().__init__(settings)
        self._paths = settings.families if isinstance(settings, SysfsSettings) else ()
        self.families: tuple[Family, ...] = (self.packaged,) if self.packaged is not None else ()
        self._serials: dict[str, dict[str, str]] = {}

    async def init(self) -> None:
        """Reads the data files. Raises PluginError or InvalidInput for a data file that cannot be used."""
        if not self._paths:
            return
        families = await self.reading(lambda: [load_family(path.expanduser()) for path in self._paths])
        keys = [family.key for family in families]
        for path, key in zip(self._paths, keys, strict=True):
            if self.packaged is not None and key != self.packaged.key:
                raise FamilyError(f"{path}: key: the plugin {self.key} takes no other key than {self.key}, not {key}")
            if keys.count(key) > 1:
                raise FamilyError(f"{path}: key: two files describe {key}")
        self.families = tuple(families)

    def _family(self, scanned: ScannedDevice) -> Family:
        slot = scanned.device.slots[0].slot_name
        return next(family for family in self.families if family.slot == slot)

    def scan(self) -> Sequence[ScannedDevice]:
        result: list[ScannedDevice] = []
        for family in self.families:
            devices = scan_family(self.tree, family, self._serials.setdefault(family.key, {}))
            result += (_with_plugin_key(device, self.key) for device in devices)
        return result

    async def configurable_slots(self) -> Sequence[SlotDisplay]:
        return [
            SlotDisplay(
                slot_name=SlotName(family.slot),
                slot_type=SlotType.COUNT,
                description=family.description or family.name,
                human_readable_name=family.name,
                display_unit=family.unit,
                display_icon=family.icon,
            )
            for family in self.families
        ]

    async def variant_namespaces(self) -> Sequence[VariantNamespace]:
        names = dict.fromkeys(family.variant_namespace for family in self.families if family.variant_namespace)
        return [VariantNamespace(namespace=name, features=FEATURES) for name in names]

    def config(self, held: Sequence[ScannedDevice], workload: Workload) -> WorkloadConfig:
        env: dict[str, str] = {}
        resource_data: dict[str, str] = {}
        mounts: dict[str, Mount] = {}
        for family in self.families:
            family_devices = [scanned for scanned in held if self._family(scanned) is family]
            fields_of_devices = [{**scanned.fields, "rank": str(rank)} for rank, scanned in enumerate(family_devices)]
            if not family_devices:
                continue
            env |= _environment(family, fields_of_devices)
            resource_data[f"{family.prefix.upper()}_GLOBAL_DEVICE_IDS"] = ",".join(
                f"{device_fields['rank']}:{device_fields['id']}" for device_fields in fields_of_devices
            )
            resource_data |= {
                name: filled_text
                for name, template in family.resource_data.items()
                if (filled_text := _fill_for_devices(template, fields_of_devices)) is not None
            }
            for values in fields_of_devices:
                for bind in family.mounts:
                    source, target = fill(bind.source, values), fill(bind.target or bind.source, values)
                    if source is not None and target is not None and self.tree.exists(source):
                        mounts[target] = Mount(source=source, target=target, read_only=bind.read_only)
        return WorkloadConfig(env_vars=env, resource_data=resource_data, mounts=tuple(mounts.values()))

    def measure(self, scanned: Sequence[ScannedDevice]) -> Sequence[Raw]:
        readings: list[Raw | None] = []
        for device in scanned:
            entry = Entry(device.fields["path"], "", "", pci_at(self.tree, device.device.hw_location))
            readings += (self._raw(device, entry, metric) for metric in self._family(device).metrics)
        return [device for device in readings if device is not None]

    def _raw(self, scanned: ScannedDevice, entry: Entry, metric: Metric) -> Raw | None:
        value = self._number(entry, metric.value)
        if value is None:
            return None
        capacity = metric.capacity if isinstance(metric.capacity, float | None) else None
        if isinstance(metric.capacity, Value) and (capacity_number := self._number(entry, metric.capacity)) is not None:
            capacity = capacity_number * metric.scale
        if metric.capacity is None and metric.unit == "percent":
            capacity = 100.0
        return Raw(
            key=f"{self._family(scanned).prefix}_{metric.key}",
            device_id=scanned.device.device_id,
            value=value * metric.scale,
            unit=metric.unit,
            capacity=capacity,
            accumulated=metric.accumulated,
            together=metric.together or ("max" if metric.unit == "celsius" else "sum"),
        )

    def _number(self, entry: Entry, value: Value) -> float | None:
        try:
            return parse_number(entry.read(self.tree, value), entry.path)
        except (Missing, Unreadable):
            return None

    async def get_node_info(self) -> NodeInfo:
        versions = await self.reading(
            lambda: {family.key: driver_version(self.tree, family) for family in self.families}
        )
        version_of_family = {key: version for key, version in versions.items() if version is not None}
        only_version = next(iter(version_of_family.values())) if len(self.families) == 1 and version_of_family else None
        return NodeInfo(
            driver_version=only_version,
            extra={} if only_version else {f"{key}_driver": version for key, version in version_of_family.items()},
        )


def _with_plugin_key(scanned: ScannedDevice, key: str) -> ScannedDevice:
    """Returns the scanned device with ``key``, the key of the plugin that lists the device, as its device name."""
    return replace(scanned, device=replace(scanned.device, device_name=DeviceName(key)))


def _fill_for_devices(template: str, fields: Sequence[Mapping[str, str]]) -> str | None:
    """Fills a template once for each device, and joins the different texts by commas.

    Returns None where a device lacks a value: a list without it would hide the device from its user.
    """
    filled_texts = [text for device_fields in fields if (text := fill(template, device_fields)) is not None]
    return ",".join(dict.fromkeys(filled_texts)) if len(filled_texts) == len(fields) else None


def _environment(family: Family, fields: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Returns the environment variables of a workload, from the family's templates and the values of its devices.

    A variable that is declared as ``{"1" = ..., "2" = ...}`` depends on how many devices the workload has.
    """
    env: dict[str, str] = {}
    for name, value in family.env.items():
        text = value.get(str(len(fields))) if isinstance(value, Mapping) else _fill_for_devices(value, fields)
        if text is not None:
            env[name] = text
    return env


def plugin_class(family: Family) -> type[SysfsPlugin]:
    """Returns the plugin of one family."""
    class_name = "".join(name_word.capitalize() for name_word in family.prefix.split("_")) + "Plugin"
    attributes = {"key": DeviceName(family.key), "key_is_slot_prefix": True, "packaged": family, "__doc__": family.name}
    return type(class_name, (SysfsPlugin,), attributes)
