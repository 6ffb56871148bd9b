"""Creates the default objects of a new installation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ai.backend.common.folders import HostPermission
from ai.backend.common.ids import DomainName, GroupId, ResourceGroupName
from ai.backend.common.states import GroupType, UserRole
from ai.backend.common.structs import replace
from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.manager.identity.model import Domain, Group, NewKeypair, ResourcePolicy
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.resource_groups.model import ResourceGroup
from ai.backend.manager.resource_groups.store import ResourceGroupStore

_STORE_PERMISSIONS = (HostPermission.MOUNT.value, HostPermission.DOWNLOAD.value)


class BootstrapResult(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the default objects of an installation. A keypair is None if it existed already, as its secret is shown
    once.
    """

    domain: DomainName
    group: GroupId
    resource_group: ResourceGroupName
    admin: NewKeypair | None
    user: NewKeypair | None


@dataclass(eq=False, repr=False)
class Bootstrap:
    """Creates the default objects, and reads and changes users on behalf of the owner of the database."""

    identities: IdentityStore
    resource_groups: ResourceGroupStore
    identity: IdentityService
    clock: Clock
    id_generator: IdGenerator

    async def run(self, *, resource_group: str = "default", vfolder_hosts: Sequence[str] = ()) -> BootstrapResult:
        """Creates those of the default domain, group, policy, users and other objects that do not exist yet.

        These are the default domain, group, resource group, policy, model store, admin and user. The default domain
        gets every permission on each of the ``vfolder_hosts`` for which it has no entry yet. A new model store may be
        mounted and cloned on these hosts by users of every domain (spec 03-18:16).
        """
        now = self.clock.now()
        domain_name, name = DomainName("default"), ResourceGroupName(resource_group)
        domain = await self.identities.domain(domain_name) or Domain(name=domain_name, created_at=now)
        all_permissions = {host: tuple(permission.value for permission in HostPermission) for host in vfolder_hosts}
        hosts = {**all_permissions, **domain.allowed_vfolder_hosts}
        await self.identities.put(replace(domain, allowed_vfolder_hosts=hosts))
        groups = await self.identities.groups(domain_name=domain_name, name="default")
        if not groups:
            group_id = GroupId(self.id_generator.uuid())
            groups = [Group(id=group_id, name="default", domain_name=domain_name, created_at=now)]
            await self.identities.put(groups[0])
        if not any(group.is_model_store for group in await self.identities.groups()):
            await self.identities.put(self._new_model_store(domain_name, vfolder_hosts))
        if not await self.identities.policies(name="default"):
            await self.identities.put(ResourcePolicy(name="default", created_at=now))
        if await self.resource_groups.resource_group(name) is None:
            await self.resource_groups.put_resource_group(ResourceGroup(name=name, created_at=now))
        admin = await self._make_user("admin@local", "admin", UserRole.SUPERADMIN, groups[0].id)
        user = await self._make_user("user@local", "user", UserRole.USER, groups[0].id)
        return BootstrapResult(domain=domain_name, group=groups[0].id, resource_group=name, admin=admin, user=user)

    def _new_model_store(self, domain_name: DomainName, hosts: Sequence[str]) -> Group:
        return Group(
            id=GroupId(self.id_generator.uuid()),
            name="model-store",
            domain_name=domain_name,
            description="Models that everybody may mount and clone.",
            created_at=self.clock.now(),
            allowed_vfolder_hosts=dict.fromkeys(hosts, _STORE_PERMISSIONS),
            type=GroupType.MODEL_STORE,
        )

    async def main_keypair(self, email: str) -> NewKeypair | None:
        """Returns the main keypair of the user ``email`` with its secret, or None if there is no such keypair.

        The embedded cluster calls this method, since the cluster owns the database.
        """
        user = await self.identities.user(email=email)
        if user is None or user.main_access_key is None:
            return None
        credentials = await self.identity.credentials(user.main_access_key)
        if credentials is None:
            return None
        return NewKeypair(access_key=user.main_access_key, secret_key=credentials.secret_key)

    async def set_password_hash(self, email: str, password_hash: str) -> None:
        """Sets the password of a user on behalf of the owner of the database."""
        user = await self.identities.user(email=email)
        if user is not None:
            await self.identities.change_user(
                user.uuid, password_hash=password_hash, need_password_change=False, modified_at=self.clock.now()
            )

    async def _make_user(self, email: str, username: str, role: UserRole, group: GroupId) -> NewKeypair | None:
        if await self.identities.user(email=email) is not None:
            return None
        domain = DomainName("default")
        _, keypair = await self.identity.make_user(email, username, role, domain, [group], password_hash=None)
        return keypair
