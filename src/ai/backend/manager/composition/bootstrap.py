"""The result of a bootstrap."""

from __future__ import annotations

from dataclasses import dataclass

from ai.backend.common.ids import DomainName, GroupId, ResourceGroupName
from ai.backend.manager.identity.model import NewKeypair


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapResult:
    """The default objects. A keypair is None if it existed already, as its secret is shown once."""

    domain: DomainName
    group: GroupId
    resource_group: ResourceGroupName
    admin: NewKeypair | None
    user: NewKeypair | None
