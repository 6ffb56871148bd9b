"""Finds, creates and updates the users that come from a directory or identity provider of the site (spec 03-01)."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from ai.backend.common.errors import BackendError, Conflict, Forbidden
from ai.backend.common.ids import DomainName
from ai.backend.common.names import check_slug
from ai.backend.common.states import UserRole
from ai.backend.manager.identity.model import User
from ai.backend.manager.identity.passwords import wrong_password_error
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.identity.users import EMAIL_PATTERN, unused_username
from ai.backend.plugin.hooks import SiteUser

log = logging.getLogger(__name__)
DEFAULT_DOMAIN = "default"


@dataclass(eq=False, slots=True)
class SiteUsers:
    """Finds, creates and updates users that a directory or identity provider of the site describes. New ones get the
    role ``user`` and no password; nobody's role or domain changes here.
    """

    _store: IdentityStore
    _identity: IdentityService

    async def resolve(self, site_user: SiteUser) -> User:
        """Returns the user with the e-mail address of a user of the site's directory or identity provider.

        The user is put into the projects that the plugin names. A missing user is created if the plugin permits it.

        Raises:
            AuthenticationFailed: there is no active user, and none may be created.
            Forbidden: the user has another domain, or a role that the plugin may not sign in.
        """
        user = await self._store.user(email=site_user.email)
        if user is None:
            user = await self._create(site_user)
        if not user.is_active:
            raise wrong_password_error()
        if user.role is not UserRole.USER and not site_user.may_be_admin:
            log.warning("a plugin may not sign in %s, whose role is %s", user.email, user.role)
            raise Forbidden("Administrators sign in with their password.", data={"role": "not by this service"})
        if site_user.domain_name not in (None, user.domain_name):
            raise Forbidden("Your account is in another domain.", data={"domain": "another one"})
        await self._update_projects(user, site_user)
        return user

    async def _create(self, site_user: SiteUser) -> User:
        if not site_user.may_create or EMAIL_PATTERN.fullmatch(site_user.email) is None:
            raise wrong_password_error()
        domain = DomainName(site_user.domain_name or DEFAULT_DOMAIN)
        await self._identity.check_domain(domain)
        username = re.sub(r"[^A-Za-z0-9._-]+", "-", site_user.username)[:56].strip("-._")
        try:
            check_slug(username, what="username", allow_dots=True)
        except BackendError:
            username = site_user.email
        username = await unused_username(self._store, username, self._identity.new_suffix)
        user_fields = {"full_name": site_user.full_name[:256]} if site_user.full_name else {}
        try:
            user, _ = await self._identity.make_user(
                site_user.email, username, UserRole.USER, domain, [], password_hash=None, **user_fields
            )
        except Conflict:  # two first sign-ins at once
            existing_user = await self._store.user(email=site_user.email)
            if existing_user is None:
                raise
            return existing_user
        log.info("a plugin made the user %s in the domain %s", user.email, domain)
        return user

    async def _update_projects(self, user: User, site_user: SiteUser) -> None:
        if not site_user.project_names and not site_user.managed_projects:
            return
        current_group_ids = {group.id for group in user.groups}
        for group in await self._store.groups(domain_name=user.domain_name):
            if group.name in site_user.project_names:
                if group.id not in current_group_ids:
                    await self._store.change_members(group.id, add=[user.uuid])
            elif group.name in site_user.managed_projects and group.id in current_group_ids:
                await self._store.change_members(group.id, remove=[user.uuid])
