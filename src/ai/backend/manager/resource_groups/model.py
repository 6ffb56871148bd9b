"""Defines resource groups, and the domains, groups and keypairs that may use them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from ai.backend.common.ids import AccessKey, DomainName, GroupId, ResourceGroupName


class ResourceGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Represents a set of agents on which sessions are scheduled together, called scaling group on the wire."""

    name: ResourceGroupName
    description: str = ""
    is_active: bool = True
    is_public: bool = True
    created_at: datetime
    driver: str = "static"
    driver_opts: Mapping[str, Any] = msgspec.field(default_factory=dict)
    scheduler: str = "fifo"
    scheduler_opts: Mapping[str, Any] = msgspec.field(default_factory=dict)
    use_host_network: bool = False
    wsproxy_addr: str | None = None
    wsproxy_api_token: str | None = None


class Beneficiary(NamedTuple):
    """Identifies a domain, group or keypair that may use resource groups; ``kind`` is ``domain``, ``group`` or
    ``keypair``.
    """

    kind: str
    id: str

    @classmethod
    def domain(cls, name: DomainName | str) -> Beneficiary:
        return cls("domain", name)

    @classmethod
    def group(cls, group_id: GroupId) -> Beneficiary:
        return cls("group", str(group_id))

    @classmethod
    def keypair(cls, access_key: AccessKey | str) -> Beneficiary:
        return cls("keypair", access_key)
