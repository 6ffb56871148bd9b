"""Describes the objects of Cyborg, Placement, Glance and Nova, as far as the driver reads them."""

from __future__ import annotations

from typing import NamedTuple
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from ai.backend.common.errors import NotFound
from ai.backend.kubeacc.crd.vocabulary import AcceleratorType

BOUND, BIND_STARTED = "Bound", "BindStarted"
_PROFILE_PREFIX = "kube-acc-"
_NAMESPACE = uuid5(NAMESPACE_URL, "https://accelerators.backend.ai/cyborg")
TYPES = {
    "FPGA": AcceleratorType.FPGA,
    "PGPU": AcceleratorType.GPU,
    "VGPU": AcceleratorType.GPU,
    "CUSTOM_HPU": AcceleratorType.NPU,
    "CUSTOM_NIC": AcceleratorType.NIC,
    "CUSTOM_QAT": AcceleratorType.QAT,
    "CUSTOM_SSD": AcceleratorType.SSD,
}
"""Resource class -> type of accelerator."""


class Deployable(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a device of Cyborg or a region of a device, with places for ``num_accelerators`` users."""

    uuid: str
    name: str = ""
    num_accelerators: int = 0
    rp_uuid: str | None = None
    driver_name: str | None = None


class Deployables(msgspec.Struct, frozen=True):
    deployables: list[Deployable]


class AcceleratorRequest(msgspec.Struct, frozen=True, kw_only=True):
    uuid: str
    state: str
    device_profile_name: str | None = None
    hostname: str | None = None
    device_rp_uuid: str | None = None
    instance_uuid: str | None = None


class AcceleratorRequests(msgspec.Struct, frozen=True):
    arqs: list[AcceleratorRequest]


class DeviceProfile(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str | None = None
    groups: list[dict[str, str]] = []


class DeviceProfiles(msgspec.Struct, frozen=True):
    device_profiles: list[DeviceProfile]


class ResourceProvider(msgspec.Struct, frozen=True, kw_only=True):
    uuid: str
    name: str
    root_provider_uuid: str


class Inventory(msgspec.Struct, frozen=True):
    total: int
    reserved: int = 0


class Inventories(msgspec.Struct, frozen=True):
    inventories: dict[str, Inventory]


class Allocations(msgspec.Struct, frozen=True):
    """Holds the allocations of a consumer. ``consumer_generation`` is absent if the consumer has none."""

    allocations: dict[str, msgspec.Raw]
    consumer_generation: int | None = None


class Server(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    host: str = msgspec.field(default="", name="OS-EXT-SRV-ATTR:host")
    hypervisor: str = msgspec.field(default="", name="OS-EXT-SRV-ATTR:hypervisor_hostname")


class Servers(msgspec.Struct, frozen=True):
    servers: list[Server]


class GlanceImage(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    status: str
    owner: str | None = None
    os_hash_algo: str | None = None
    os_hash_value: str | None = None


class GlanceImages(msgspec.Struct, frozen=True):
    images: list[GlanceImage]


class Machine(NamedTuple):
    """Describes the machine to which accelerators are bound: a server of Nova, or a compute host itself.

    ``instance`` empty: the latter.
    """

    node: str
    instance: str
    host: str
    hypervisor: str = ""


class Unit(NamedTuple):
    """Names one accelerator of a deployable.

    One machine at a time can have it. A device profile, a request and an allocation have names made of it, so nothing
    else has to remember to which unit they belong.
    """

    deployable: str
    number: int
    cluster: str = ""

    @property
    def device_id(self) -> str:
        return f"{self.deployable}.{self.number}"

    @property
    def profile(self) -> str:
        cluster = f"{self.cluster}-" if self.cluster else ""
        return f"{_PROFILE_PREFIX}{cluster}{self.deployable}-{self.number}"

    @property
    def consumer(self) -> str:
        """Returns the consumer that holds the unit's share in Placement."""
        return str(uuid5(_NAMESPACE, self.profile))

    @property
    def programming_consumer(self) -> str:
        """The id of the consumer in Placement that holds the deployable's free shares while the unit is programmed."""
        return str(uuid5(_NAMESPACE, f"{self.profile}.program"))

    @property
    def host_instance(self) -> str:
        """The instance id that stands for the compute host when the unit is bound to the compute host itself."""
        return str(uuid5(_NAMESPACE, f"{self.profile}.host"))

    @classmethod
    def parse(cls, device_id: str, cluster: str = "") -> Unit:
        """Parses the id of a unit. Raises NotFound: no unit has such an id."""
        deployable, dot, number = device_id.rpartition(".")
        try:
            if not dot or not number.isascii() or not number.isdecimal() or len(number) > 6:
                raise ValueError
            return cls(str(UUID(deployable)), int(number), cluster)
        except ValueError:
            raise NotFound(f"there is no device {device_id[:128]!r}") from None
