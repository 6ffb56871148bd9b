"""Folders that several people use: invite, accept, share, leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ai.backend.cli.calling import call
from ai.backend.cli.lazy import screen_of
from ai.backend.cli.vfolder_group import PERMISSION, command, show, tell

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession


@command("invite")
@click.argument("name")
@click.argument("emails", nargs=-1, required=True)
@click.option("-p", "--perm", type=PERMISSION, default="rw", show_default=True, help="What they may do.")
def invite(name: str, emails: tuple[str, ...], perm: str) -> None:
    """Offer your folder to other users."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        invited = await api.VFolder(name).invite(perm, emails)
        if not invited:
            screen.note("all of them were invited before")
        tell(screen, {"invited": invited}, "\n".join(f"invited {email}" for email in invited))

    call(screen, work)


_INVITATION_COLUMNS = [
    ("vfolder_name", "Folder"),
    ("inviter", "From"),
    ("invitee", "To"),
    ("perm", "Permission"),
    ("id", "ID"),
]


@command("invitations")
@click.option("--sent", is_flag=True, help="Those that you sent.")
def invitations(sent: bool) -> None:
    """List invitations without an answer; `accept`, `reject` and `update-invitation` take their ID."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        found = await (api.VFolder.sent_invitations() if sent else api.VFolder.invitations())
        show(screen, found, _INVITATION_COLUMNS, "there are no invitations")

    call(screen, work)


@command("accept")
@click.argument("invitation_id")
def accept(invitation_id: str) -> None:
    """Accept an invitation."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        await api.VFolder.accept_invitation(invitation_id)
        tell(screen, {"accepted": invitation_id}, f"accepted {invitation_id}")

    call(screen, work)


@command("reject")
@click.argument("invitation_id")
def reject(invitation_id: str) -> None:
    """Decline an invitation, or take your own back."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        await api.VFolder.delete_invitation(invitation_id)
        tell(screen, {"rejected": invitation_id}, f"rejected {invitation_id}")

    call(screen, work)


@command("update-invitation")
@click.argument("invitation_id")
@click.argument("perm", type=PERMISSION)
def update_invitation(invitation_id: str, perm: str) -> None:
    """Change what an invitation that you sent offers."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        await api.VFolder.update_invitation(invitation_id, perm)
        tell(screen, {"updated": invitation_id}, f"updated {invitation_id}")

    call(screen, work)


@command("share")
@click.argument("name")
@click.argument("emails", nargs=-1, required=True)
@click.option("-p", "--perm", type=PERMISSION, default="rw", show_default=True, help="What they may do.")
def share(name: str, emails: tuple[str, ...], perm: str) -> None:
    """Say what single members may do with a group's folder; for administrators."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        shared = await api.VFolder(name).share(perm, emails)
        tell(screen, {"shared": shared}, "\n".join(f"shared with {email}" for email in shared))

    call(screen, work)


@command("unshare")
@click.argument("name")
@click.argument("emails", nargs=-1, required=True)
def unshare(name: str, emails: tuple[str, ...]) -> None:
    """End what was said for single members; for administrators."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        ended = await api.VFolder(name).unshare(emails)
        tell(screen, {"unshared": ended}, "\n".join(f"no longer shared with {email}" for email in ended))

    call(screen, work)


@command("shared")
@click.argument("name", required=False)
def shared(name: str | None) -> None:
    """List who shares your folders, or the folder NAME."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        found = await api.VFolder.list_shared(name)
        rows = [{**one, "email": one["shared_to"]["email"], "user": one["shared_to"]["uuid"]} for one in found]
        columns = [("vfolder_name", "Folder"), ("email", "Shared with"), ("perm", "Permission"), ("user", "User ID")]
        show(screen, rows, columns, "nobody shares them")

    call(screen, work)


@command("leave")
@click.argument("name")
@click.option("-s", "--shared-user-uuid", metavar="UUID", help="End the share of this user; for owners.")
def leave(name: str, shared_user_uuid: str | None) -> None:
    """Give up a folder that somebody shares with you."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        await api.VFolder(name).leave(shared_user_uuid)
        tell(screen, {"left": name}, f"left {name}")

    call(screen, work)
