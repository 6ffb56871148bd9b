"""Defines users, keypairs, domains, groups and their policies (spec 03-09, peer facts 4.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar

import msgspec

from ai.backend.common.ids import AccessKey, DomainName, GroupId, UserId
from ai.backend.common.slots import INFINITY, ResourceSlot
from ai.backend.common.states import GroupType, UserRole, UserStatus
from ai.backend.common.volume_paths import QuotaScopeKind
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.permissions import PERMISSIONS, Operation, Scope

ALL_REGISTRIES = "*"
"""The entry that stands for every configured registry, in the registries that a domain may use."""
MAX_PASSWORD_HISTORY = 24
"""The number of old passwords of a user that are kept, so that they can be refused as new passwords."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Holds the secret key and the owner of a keypair, and if the keypair may sign requests.

    ``is_active`` is False if the keypair or its user is inactive, and, except for superadmins, if the domain is.
    ``key_networks`` are those from which this keypair may sign, beside those of the user; empty is any.
    """

    caller: Caller
    secret_key: str = field(repr=False)
    is_active: bool
    ssh_public_key: str | None = None
    key_networks: tuple[str, ...] = ()


class User(msgspec.Struct, frozen=True, kw_only=True):
    """Represents a user: names, role, status, domain, groups and rules for signing in.

    Attributes:
        allowed_client_ip: networks from which the user may sign and sign in, as text; empty allows all.
        totp_activated: signing in takes a one-time password too.
        sudo_session_enabled: sessions are told that their user may become root, where their image lets them.
        password_changed_at: when the password was set; None without one, or if it was set by an older version.
    """

    uuid: UserId
    username: str
    email: str
    role: UserRole
    domain_name: DomainName
    full_name: str = ""
    description: str = ""
    need_password_change: bool = False
    status: UserStatus = UserStatus.ACTIVE
    status_info: str | None = None
    created_at: datetime
    modified_at: datetime
    main_access_key: AccessKey | None = None
    resource_policy: str = "default"
    allowed_client_ip: tuple[str, ...] = ()
    totp_activated: bool = False
    sudo_session_enabled: bool = False
    password_changed_at: datetime | None = None
    groups: tuple[GroupRef, ...] = ()

    @property
    def is_active(self) -> bool:
        return self.status is UserStatus.ACTIVE


class GroupRef(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the id and the name of a group."""

    id: GroupId
    name: str


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Represents a project: users of a domain who share limits, folders and sessions."""

    id: GroupId
    name: str
    domain_name: DomainName
    description: str = ""
    is_active: bool = True
    created_at: datetime
    modified_at: datetime | None = None
    total_resource_slots: ResourceSlot = msgspec.field(default_factory=ResourceSlot)
    allowed_vfolder_hosts: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    integration_id: str | None = None
    type: GroupType = GroupType.GENERAL
    resource_policy: str = "default"

    @property
    def is_model_store(self) -> bool:
        return self.type is GroupType.MODEL_STORE and self.is_active


class Domain(msgspec.Struct, frozen=True, kw_only=True):
    """Represents a domain, which contains users and groups.

    ``allowed_vfolder_hosts``: storage host -> names of HostPermission; groups and policies have them too.
    ``allowed_docker_registries``: registries whose images its sessions may use; None is all configured ones.
    """

    name: DomainName
    description: str = ""
    is_active: bool = True
    created_at: datetime
    modified_at: datetime | None = None
    total_resource_slots: ResourceSlot = msgspec.field(default_factory=ResourceSlot)
    allowed_vfolder_hosts: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    allowed_docker_registries: Sequence[str] | None = None
    integration_id: str | None = None


class Keypair(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the public part of a keypair. ``ssh_public_key`` opens its sessions. ``concurrency_limit`` bounds their
    number in addition to its policy (0: any number). ``allowed_client_ip`` are networks from which it may sign (empty:
    any).
    """

    access_key: AccessKey
    user_id: UserId
    user_email: str
    user_full_name: str = ""
    is_active: bool = True
    is_admin: bool = False
    created_at: datetime
    modified_at: datetime
    last_used: datetime | None = None
    resource_policy: str = "default"
    rate_limit: int = 10_000
    concurrency_limit: int = 0
    num_queries: int = 0
    ssh_public_key: str | None = None
    allowed_client_ip: tuple[str, ...] = ()
    concurrency_used: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKeypair:
    """Holds a new keypair with its secret, which is shown only once."""

    access_key: AccessKey
    secret_key: str = field(repr=False)


class ResourcePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the limits of a keypair (spec 03-09, peer facts 4.4).

    Attributes:
        max_concurrent_sessions: live sessions; zero is no limit.
        max_containers_per_session: kernels of one session; zero is no limit.
        max_pending_session_count: sessions that wait for resources; zero is no limit.
        max_pending_session_resource_slots: their requested slots together; a missing slot is unbounded.
        max_session_lifetime: seconds from its start to its end; zero is no limit.
        idle_timeout: idle seconds; zero is the default of the shared configuration, negative is no limit.
        max_claims: device claims; zero is the default of the manager.
        max_claim_idle_time: seconds for which a claim may keep its devices without a session; zero is no limit.
    """

    name: str
    created_at: datetime
    default_for_unspecified: str = "UNLIMITED"
    total_resource_slots: ResourceSlot = msgspec.field(default_factory=ResourceSlot)
    max_concurrent_sessions: int = 0
    max_containers_per_session: int = 64
    max_pending_session_count: int = 0
    max_pending_session_resource_slots: ResourceSlot = msgspec.field(default_factory=ResourceSlot)
    max_session_lifetime: int = 0
    idle_timeout: int = 0
    max_claims: int = 0
    max_claim_idle_time: int = 0
    max_vfolder_count: int = 0
    max_vfolder_size: int = 0
    allowed_vfolder_hosts: Mapping[str, Any] = msgspec.field(default_factory=dict)

    def limit_of(self, slot: str) -> Decimal:
        """Returns the amount of a slot that a keypair may occupy. A slot without an entry is unlimited, or forbidden if
        the policy is LIMITED.
        """
        default_limit = INFINITY if self.default_for_unspecified == "UNLIMITED" else Decimal(0)
        return self.total_resource_slots[slot] if slot in set(self.total_resource_slots) else default_limit


class StoragePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the limits of users or projects: live folders (0: any number), and bytes on each volume (-1: no limit)."""

    kind: QuotaScopeKind
    name: str
    created_at: datetime
    max_vfolder_count: int = 0
    max_quota_scope_size: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TotpDevice:
    """Holds the key and state of a user's time-based one-time passwords (RFC 6238).

    Attributes:
        key: the secret in base32.
        is_active: signing in takes one; a device that was made and not confirmed is inactive.
        recovery_codes: how many are left.
    """

    key: str = field(repr=False)
    is_active: bool
    created_at: datetime
    recovery_codes: int = 0


class SignInRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Records an attempt to sign in as a user. ``method`` is ``password`` or ``hook``, or the name of the plugin that a
    browser was led to; ``outcome`` is ``ok`` or the code of the error.
    """

    user_id: UserId
    at: datetime
    address: str
    method: str
    outcome: str


Tenant = TypeVar("Tenant", Domain, Group, ResourcePolicy, StoragePolicy)


def may_sign(role: UserRole, status: UserStatus, *, is_keypair_active: bool, is_domain_active: bool | None) -> bool:
    """Returns True if a keypair with this state of its owner and its domain may sign requests.

    ``is_domain_active`` is None without a domain.
    """
    may_use_domain = is_domain_active is not False or PERMISSIONS[role, Operation.SIGN_WITHOUT_DOMAIN] is Scope.ALL
    return is_keypair_active and status is UserStatus.ACTIVE and may_use_domain
