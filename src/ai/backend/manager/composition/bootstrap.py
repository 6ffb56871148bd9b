"""Bootstrap of composition."""

from __future__ import annotations

from dataclasses import dataclass

from ai.backend.common.ids import DomainName, GroupId, ResourceGroupName
from ai.backend.manager.identity.model import NewKeypair


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapResult:
    """Which default objects exist now. A keypair is None when it existed already: its secret is not told again."""

    domain: DomainName
    group: GroupId
    resource_group: ResourceGroupName
    admin: NewKeypair | None
    user: NewKeypair | None
