"""Folders that several people use: invite, accept, share, leave."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.lazy import ListCommand, Outcome, screen_of
from ai.backend.cli.framework.objects import list_objects
from ai.backend.cli.framework.output import columns
from ai.backend.cli.framework.references import find_id, is_short_id
from ai.backend.cli.vfolder.group import (
    FOLDER_NAME,
    PERM_OPTION,
    PERMISSION,
    change_folder,
    folder_id,
    open_folder,
    vfolder,
)

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

INVITATION_COLUMNS = columns("vfolder_name: Folder | inviter: From | invitee: To | perm: Permission | id/short: ID")
SHARE_COLUMNS = columns("vfolder_name: Folder | email: Shared with | perm: Permission | user/wide: User ID")
_EMAILS_ARGUMENT = click.argument("emails", nargs=-1, required=True)
_INVITATION_ARGUMENT = click.argument("invitation_id")


@vfolder.command("invite")
@FOLDER_NAME
@_EMAILS_ARGUMENT
@PERM_OPTION
async def invite(api: AsyncSession, name: str, emails: tuple[str, ...], perm: str) -> Outcome:
    """Offer your folder to other users."""
    invited_emails = await (await open_folder(api, name)).invite(perm, emails)
    if not invited_emails:
        screen_of().inform("all of them were invited before")
    return {"invited": invited_emails}, "\n".join(f"invited {email}" for email in invited_emails)


@vfolder.command("invitations", cls=ListCommand)
@click.option("--sent", is_flag=True, help="Those that you sent.")
def invitations(sent: bool) -> None:
    """List invitations without an answer; `accept`, `reject` and `update-invitation` take their ID."""
    list_objects(
        lambda api: api.VFolder.sent_invitations() if sent else api.VFolder.invitations(),
        INVITATION_COLUMNS,
        "there are no invitations",
    )


async def _change_invitation(
    api: AsyncSession, reference: str, past_verb: str, action: Callable[[str], Awaitable[Any]]
) -> Outcome:
    """Applies ``action`` to the invitation that an id, or the beginning of an id, means."""

    invitations = [*await api.VFolder.invitations(), *await api.VFolder.sent_invitations()]
    full_id = reference
    if is_short_id(reference):
        full_id = find_id(reference, invitations, kind="invitation", name_key="vfolder_name")
    await action(full_id)
    folder = next(
        (str(invitation["vfolder_name"]) for invitation in invitations if str(invitation["id"]) == full_id), reference
    )
    return {past_verb: full_id}, f"{past_verb} the invitation to {folder}"


@vfolder.command("accept")
@_INVITATION_ARGUMENT
async def accept(api: AsyncSession, invitation_id: str) -> Outcome:
    """Accept an invitation."""
    return await _change_invitation(api, invitation_id, "accepted", api.VFolder.accept_invitation)


@vfolder.command("reject")
@_INVITATION_ARGUMENT
async def reject(api: AsyncSession, invitation_id: str) -> Outcome:
    """Decline an invitation, or withdraw your own."""
    return await _change_invitation(api, invitation_id, "rejected", api.VFolder.delete_invitation)


@vfolder.command("update-invitation")
@_INVITATION_ARGUMENT
@click.argument("perm", type=PERMISSION)
async def update_invitation(api: AsyncSession, invitation_id: str, perm: str) -> Outcome:
    """Change the permission that an invitation of yours offers."""
    send_update = api.VFolder.update_invitation
    return await _change_invitation(api, invitation_id, "updated", lambda full_id: send_update(full_id, perm))


@vfolder.command("share")
@FOLDER_NAME
@_EMAILS_ARGUMENT
@PERM_OPTION
async def share(api: AsyncSession, name: str, emails: tuple[str, ...], perm: str) -> Outcome:
    """Set the permission of single members in a group's folder; for administrators."""
    members = await (await open_folder(api, name)).share(perm, emails)
    return {"shared": members}, "\n".join(f"shared with {email}" for email in members)


@vfolder.command("unshare")
@FOLDER_NAME
@_EMAILS_ARGUMENT
async def unshare(api: AsyncSession, name: str, emails: tuple[str, ...]) -> Outcome:
    """Remove the permission set by `share` for single members; for administrators."""
    members = await (await open_folder(api, name)).unshare(emails)
    return {"unshared": members}, "\n".join(f"no longer shared with {email}" for email in members)


@vfolder.command("shared", cls=ListCommand)
@click.argument("name", required=False)
async def shared(api: AsyncSession, name: str | None) -> None:
    """List who shares your folders, or the folder NAME."""
    await list_shares(api, name)


async def list_shares(api: AsyncSession, folder: str | None) -> None:
    """Prints the users who share a folder, or any folder of the caller."""
    shares = await api.VFolder.list_shared(await folder_id(api, folder) if folder else None)
    rows = [{**share, "email": share["shared_to"]["email"], "user": share["shared_to"]["uuid"]} for share in shares]
    screen_of().print_rows(rows, SHARE_COLUMNS, "nobody shares them")


@vfolder.command("leave")
@FOLDER_NAME
@click.option("-s", "--shared-user-uuid", metavar="UUID", help="End the share of this user; for owners.")
def leave(name: str, shared_user_uuid: str | None) -> None:
    """Give up a folder that somebody shares with you."""
    change_folder(name, lambda folder: folder.leave(shared_user_uuid), {"left": name}, f"left {name}")
