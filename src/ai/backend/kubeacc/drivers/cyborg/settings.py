"""Settings of the driver of OpenStack Cyborg: the table ``[drivers.cyborg]`` of ``kube-acc-controllers.toml``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from ai.backend.plugin.settings import Settings


class CyborgNodeSettings(Settings):
    """The table ``[drivers.cyborg.nodes.NODE]``: a node that is no server of Nova, or one of another name."""

    host: str = Field(min_length=1, description="The compute host of the node, as Cyborg and Placement name it.")
    instance: str = Field("", description="The node's server in Nova; empty: the node is the compute host itself.")


class CyborgSettings(Settings):
    """The table ``[drivers.cyborg]``: the OpenStack cloud of the driver, and the account in this cloud."""

    cluster: str = Field(
        "",
        pattern="^[a-z0-9-]{0,63}$",
        description="Name of this cluster where several share the cloud: each gives away and takes back its own.",
    )
    auth_type: str = Field("password", description="The plugin of keystoneauth: password, v3applicationcredential ...")
    auth: dict[str, str] = Field(
        default_factory=dict,
        description="Its options, as the table auth of clouds.yaml has them; a key that ends in -file names a file"
        " with the value. The account needs the roles admin, for device profiles, and service, by which Cyborg"
        " lets it bind accelerators.",
    )
    service_auth: dict[str, str] = Field(
        default_factory=dict, description="The account of the service token, if it is another one; same type."
    )
    region: str = Field("", description="The region in the catalog of Keystone.")
    interface: Literal["public", "internal", "admin"] = Field("public", description="The endpoints that are used.")
    endpoints: dict[str, str] = Field(
        default_factory=dict,
        description="URLs instead of those of the catalog, for accelerator, placement, image or compute.",
    )
    ca_file: Path | None = Field(None, description="The certificates that sign those of the cloud.")
    request_timeout: float = Field(30.0, gt=0, description="In seconds, for one request.")
    bind_timeout: float = Field(300.0, gt=0, description="In seconds, until Cyborg has bound an accelerator.")
    program_timeout: float = Field(300.0, gt=0, description="In seconds, until Cyborg has programmed a device.")
    nodes: dict[str, CyborgNodeSettings] = Field(
        default_factory=dict, description="Nodes that are not servers of Nova with the name of the node."
    )

    @field_validator("endpoints")
    @classmethod
    def _check_endpoints(cls, endpoints: dict[str, str]) -> dict[str, str]:
        unknown = endpoints.keys() - {"accelerator", "placement", "image", "compute"}
        if unknown:
            raise ValueError(f"{', '.join(sorted(unknown))}: not one of accelerator, placement, image, compute")
        return endpoints
