"""Shares folders of users by invitation, and folders of groups directly (spec 03-08)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from ai.backend.common.errors import FolderNotFound, InvalidInput, NotFound
from ai.backend.common.folders import FolderOwnership, FolderPermission, HostPermission
from ai.backend.common.ids import InvitationId, UserId
from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.folders.access import FolderFinder
from ai.backend.manager.folders.model import FolderAccess, Invitation, InvitationState, Share
from ai.backend.manager.folders.store import FolderStore
from ai.backend.manager.identity.model import User
from ai.backend.manager.identity.store import IdentityStore


def _unknown_invitation_error() -> NotFound:
    return NotFound("There is no such invitation.", data={"inv_id": "unknown"})


@dataclass(eq=False, slots=True)
class FolderSharing:
    """Sends and answers invitations, and changes shares of folders. ``ref`` is a name or an id; raises the errors of
    :meth:`FolderFinder.one`.
    """

    _store: FolderStore
    _identities: IdentityStore
    _finder: FolderFinder
    _clock: Clock
    _id_generator: IdGenerator

    async def _users_of(self, caller: Caller, emails: Sequence[str]) -> list[User]:
        """Returns the active users with these e-mail addresses with whom the caller may share folders.

        The caller is left out. Raises InvalidInput without emails, NotFound if none is of such a user.
        """
        if not emails:
            raise InvalidInput("Say whom.", data={"emails": "required"})
        users: dict[UserId, User] = {}
        for email in dict.fromkeys(emails):
            user = await self._identities.user(email=email)
            if user is None or not user.is_active or user.uuid == caller.user_id:
                continue
            if is_permitted(caller, Operation.SHARE_FOLDERS, domain_name=user.domain_name):
                users[user.uuid] = user
        if not users:
            message = "None of these addresses is of another active user of your domain."
            raise NotFound(message, data={"emails": list(emails)[:20]})
        return list(users.values())

    # ---- invitations ----

    async def invite(self, caller: Caller, ref: str, permission: FolderPermission, emails: Sequence[str]) -> list[str]:
        """Invites users to share the folder of a user. Returns the emails of those who were neither invited nor sharing
        before.
        """
        folder = (await self._finder.one(caller, ref, to_control=True, needs=HostPermission.INVITE)).folder
        if folder.ownership_type is FolderOwnership.GROUP:
            raise InvalidInput("A group's folder is shared, not offered by invitation.", data={"name": "of a group"})
        if folder.name.startswith("."):
            raise InvalidInput("A folder that is mounted by itself is its owner's alone.", data={"name": "dotted"})
        sharing_user_ids = {share.user_id for share in await self._store.shares([folder.id])}
        now = self._clock.now()
        invited_emails = []
        for user in await self._users_of(caller, emails):
            if user.uuid in sharing_user_ids or user.uuid == folder.user_id:
                continue
            invitation = Invitation(
                id=InvitationId(self._id_generator.uuid()),
                folder_id=folder.id,
                inviter=caller.email,
                invitee=user.email,
                permission=permission,
                created_at=now,
                modified_at=now,
            )
            if await self._store.invite(invitation):
                invited_emails.append(user.email)
        return invited_emails

    async def received_invitations(self, caller: Caller) -> Sequence[Invitation]:
        """Returns the pending invitations that the caller has received."""
        return await self._store.invitations(invitee=caller.email)

    async def sent_invitations(self, caller: Caller) -> Sequence[Invitation]:
        """Returns the pending invitations that the caller has sent."""
        return await self._store.invitations(inviter=caller.email)

    async def _pending_invitation(
        self, invitation_id: UUID, *, inviter: str | None = None, invitee: str | None = None
    ) -> Invitation:
        invitation = await self._store.invitation(InvitationId(invitation_id))
        is_party = invitation is not None and (invitation.inviter == inviter or invitation.invitee == invitee)
        if invitation is None or not is_party or invitation.state is not InvitationState.PENDING:
            raise _unknown_invitation_error()
        return invitation

    async def accept(self, caller: Caller, invitation_id: UUID) -> None:
        """Accepts an invitation to the caller. Raises FolderAlreadyExists if the caller uses a folder of that name."""
        invitation = await self._pending_invitation(invitation_id, invitee=caller.email)
        row = await self._store.get(invitation.folder_id)
        if row is None or not row.folder.status.is_live:
            raise NotFound("The folder of this invitation is gone.", data={"inv_id": "its folder is gone"})
        is_accepted = await self._store.answer(
            invitation.id, InvitationState.ACCEPTED, at=self._clock.now(), user_id=caller.user_id
        )
        if not is_accepted:
            raise _unknown_invitation_error()

    async def reject(self, caller: Caller, invitation_id: UUID) -> None:
        """Rejects an invitation to the caller, or withdraws one that the caller sent."""
        invitation = await self._pending_invitation(invitation_id, invitee=caller.email, inviter=caller.email)
        if not await self._store.answer(invitation.id, InvitationState.REJECTED, at=self._clock.now()):
            raise _unknown_invitation_error()

    async def amend(self, caller: Caller, invitation_id: UUID, permission: FolderPermission) -> None:
        """Changes the permission of an invitation that the caller sent."""
        invitation = await self._pending_invitation(invitation_id, inviter=caller.email)
        if not await self._store.amend(invitation.id, permission, at=self._clock.now()):
            raise _unknown_invitation_error()

    # ---- shares ----

    async def share(self, caller: Caller, ref: str, permission: FolderPermission, emails: Sequence[str]) -> list[str]:
        """Sets the permission of individual members on the folder of their group. Returns their emails."""
        access = await self._group_folder(caller, ref)
        shared_emails = []
        for user in await self._users_of(caller, emails):
            if any(group.id == access.folder.group_id for group in user.groups):
                await self._store.share(access.folder.id, user.uuid, permission)
                shared_emails.append(user.email)
        if not shared_emails:
            raise NotFound("None of them is a member of the group.", data={"emails": list(emails)[:20]})
        return shared_emails

    async def unshare(self, caller: Caller, ref: str, emails: Sequence[str]) -> list[str]:
        """Removes the permissions of individual members on the folder of their group. Returns their emails."""
        access = await self._group_folder(caller, ref)
        users = await self._users_of(caller, emails)
        return [user.email for user in users if await self._store.share(access.folder.id, user.uuid, None)]

    async def _group_folder(self, caller: Caller, ref: str) -> FolderAccess:
        needed_permission = HostPermission.SET_USER_PERMISSION
        access = await self._finder.one(caller, ref, to_control=True, needs=needed_permission)
        if access.folder.ownership_type is not FolderOwnership.GROUP:
            raise InvalidInput(
                "Only a group's folder is shared so; invite others to your own.", data={"name": "not of a group"}
            )
        return access

    async def shares(self, caller: Caller, ref: str | None = None) -> list[tuple[FolderAccess, Share]]:
        """Returns the shares of one folder, or of all folders of the caller."""
        if ref is not None:
            folders = [await self._finder.one(caller, ref, to_control=True)]
        else:
            folders = [
                access
                for access in await self._finder.accessible(caller)
                if access.is_owner and access.folder.status.is_live
            ]
        access_by_folder_id = {access.folder.id: access for access in folders}
        return [
            (access_by_folder_id[share.folder_id], share) for share in await self._store.shares(access_by_folder_id)
        ]

    async def set_share(self, caller: Caller, ref: str, user_id: UUID, permission: FolderPermission | None) -> None:
        """Changes an existing share of a folder, or ends the share if the permission is None."""
        needed_permission = HostPermission.SET_USER_PERMISSION
        folder = (await self._finder.one(caller, ref, to_control=True, needs=needed_permission)).folder
        if all(share.user_id != user_id for share in await self._store.shares([folder.id])):
            raise NotFound("That user does not share this folder.", data={"user": "unknown"})
        await self._store.share(folder.id, UserId(user_id), permission)

    async def leave(self, caller: Caller, ref: str, user_id: UUID | None = None) -> None:
        """Ends the caller's share of a folder, or the share of ``user_id`` if the caller controls the folder. Raises
        InvalidInput for own and group folders.
        """
        access = await self._finder.one(caller, ref)
        if access.folder.ownership_type is FolderOwnership.GROUP:
            raise InvalidInput("Nobody can leave a folder of their group.", data={"name": "of a group"})
        if user_id is not None and user_id != caller.user_id:
            if not access.controls:
                raise NotFound("That user does not share this folder.", data={"shared_user_uuid": "unknown"})
            leaving_user_id = UserId(user_id)
        elif access.is_owner:
            raise InvalidInput("Nobody can leave their own folder.", data={"name": "your own"})
        else:
            leaving_user_id = caller.user_id
        if not await self._store.share(access.folder.id, leaving_user_id, None):
            if leaving_user_id == caller.user_id:
                raise FolderNotFound  # another call ended it meanwhile
            raise NotFound("That user does not share this folder.", data={"shared_user_uuid": "unknown"})
