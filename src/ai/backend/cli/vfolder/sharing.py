"""Folders that several people use: invite, accept, share, leave."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.lazy import ListCommand, Outcome, screen_of
from ai.backend.cli.framework.objects import list_objects
from ai.backend.cli.framework.output import columns
from ai.backend.cli.framework.references import resolve
from ai.backend.cli.vfolder.group import NAME, PERM_OPTION, PERMISSION, change_folder, folder_id, open_folder, vfolder

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

INVITATION_COLUMNS = columns("vfolder_name: Folder | inviter: From | invitee: To | perm: Permission | id/short: ID")
SHARE_COLUMNS = columns("vfolder_name: Folder | email: Shared with | perm: Permission | user/wide: User ID")
_EMAILS = click.argument("emails", nargs=-1, required=True)
_INVITATION = click.argument("invitation_id")


@vfolder.command("invite")
@NAME
@_EMAILS
@PERM_OPTION
async def invite(api: AsyncSession, name: str, emails: tuple[str, ...], perm: str) -> Outcome:
    """Offer your folder to other users."""
    invited = await (await open_folder(api, name)).invite(perm, emails)
    if not invited:
        screen_of().inform("all of them were invited before")
    return {"invited": invited}, "\n".join(f"invited {email}" for email in invited)


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
    api: AsyncSession, reference: str, done: str, action: Callable[[str], Awaitable[Any]]
) -> Outcome:
    """Does something to the invitation of this id, or beginning of an id."""

    async def load() -> list[dict[str, Any]]:
        return [*await api.VFolder.invitations(), *await api.VFolder.sent_invitations()]

    full_id = await resolve(reference, load, kind="invitation", name="vfolder_name")
    await action(full_id)
    return {done: full_id}, f"{done} {reference}"


@vfolder.command("accept")
@_INVITATION
async def accept(api: AsyncSession, invitation_id: str) -> Outcome:
    """Accept an invitation."""
    return await _change_invitation(api, invitation_id, "accepted", api.VFolder.accept_invitation)


@vfolder.command("reject")
@_INVITATION
async def reject(api: AsyncSession, invitation_id: str) -> Outcome:
    """Decline an invitation, or take your own back."""
    return await _change_invitation(api, invitation_id, "rejected", api.VFolder.delete_invitation)


@vfolder.command("update-invitation")
@_INVITATION
@click.argument("perm", type=PERMISSION)
async def update_invitation(api: AsyncSession, invitation_id: str, perm: str) -> Outcome:
    """Change what an invitation that you sent offers."""
    update = api.VFolder.update_invitation
    return await _change_invitation(api, invitation_id, "updated", lambda full_id: update(full_id, perm))


@vfolder.command("share")
@NAME
@_EMAILS
@PERM_OPTION
async def share(api: AsyncSession, name: str, emails: tuple[str, ...], perm: str) -> Outcome:
    """Say what single members may do with a group's folder; for administrators."""
    members = await (await open_folder(api, name)).share(perm, emails)
    return {"shared": members}, "\n".join(f"shared with {email}" for email in members)


@vfolder.command("unshare")
@NAME
@_EMAILS
async def unshare(api: AsyncSession, name: str, emails: tuple[str, ...]) -> Outcome:
    """End what was said for single members; for administrators."""
    members = await (await open_folder(api, name)).unshare(emails)
    return {"unshared": members}, "\n".join(f"no longer shared with {email}" for email in members)


@vfolder.command("shared", cls=ListCommand)
@click.argument("name", required=False)
async def shared(api: AsyncSession, name: str | None) -> None:
    """List who shares your folders, or the folder NAME."""
    await list_shares(api, name)


async def list_shares(api: AsyncSession, folder: str | None) -> None:
    """Prints who shares this folder, or any of the caller's."""
    shares = await api.VFolder.list_shared(await folder_id(api, folder) if folder else None)
    rows = [{**row, "email": row["shared_to"]["email"], "user": row["shared_to"]["uuid"]} for row in shares]
    screen_of().rows(rows, SHARE_COLUMNS, "nobody shares them")


@vfolder.command("leave")
@NAME
@click.option("-s", "--shared-user-uuid", metavar="UUID", help="End the share of this user; for owners.")
def leave(name: str, shared_user_uuid: str | None) -> None:
    """Give up a folder that somebody shares with you."""
    change_folder(name, lambda folder: folder.leave(shared_user_uuid), {"left": name}, f"left {name}")
