"""Folders that several people use: invite, accept, share, leave."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.invoke import call
from ai.backend.cli.framework.lazy import screen_of
from ai.backend.cli.framework.objects import change, list_them
from ai.backend.cli.framework.output import Column
from ai.backend.cli.framework.printing import print_result
from ai.backend.cli.framework.references import resolve
from ai.backend.cli.framework.values import short_id
from ai.backend.cli.vfolder.group import PERMISSION, change_folder, command, folder_id, list_command, open_folder

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
        invited = await (await open_folder(api, name)).invite(perm, emails)
        if not invited:
            screen.inform("all of them were invited before")
        print_result(screen, {"invited": invited}, "\n".join(f"invited {email}" for email in invited))

    call(screen, work)


INVITATION_COLUMNS = [
    Column("vfolder_name", "Folder"),
    Column("inviter", "From"),
    Column("invitee", "To"),
    Column("perm", "Permission"),
    Column("id", "ID", short_id),
]

SHARE_COLUMNS = [
    Column("vfolder_name", "Folder"),
    Column("email", "Shared with"),
    Column("perm", "Permission"),
    Column("user", "User ID", is_wide=True),
]


@list_command("invitations")
@click.option("--sent", is_flag=True, help="Those that you sent.")
def invitations(sent: bool) -> None:
    """List invitations without an answer; `accept`, `reject` and `update-invitation` take their ID."""
    list_them(
        lambda api: api.VFolder.sent_invitations() if sent else api.VFolder.invitations(),
        INVITATION_COLUMNS,
        "there are no invitations",
    )


def _change_invitation(reference: str, done: str, act: Callable[[AsyncSession, str], Awaitable[Any]]) -> None:
    """Do something to the invitation of this id, or beginning of an id, and print that it is done."""

    async def work(api: AsyncSession) -> dict[str, str]:
        async def load() -> list[dict[str, Any]]:
            return [*await api.VFolder.invitations(), *await api.VFolder.sent_invitations()]

        full_id = await resolve(reference, load, kind="invitation", name="vfolder_name")
        await act(api, full_id)
        return {done: full_id}

    change(work, {}, f"{done} {reference}")


@command("accept")
@click.argument("invitation_id")
def accept(invitation_id: str) -> None:
    """Accept an invitation."""
    _change_invitation(invitation_id, "accepted", lambda api, full_id: api.VFolder.accept_invitation(full_id))


@command("reject")
@click.argument("invitation_id")
def reject(invitation_id: str) -> None:
    """Decline an invitation, or take your own back."""
    _change_invitation(invitation_id, "rejected", lambda api, full_id: api.VFolder.delete_invitation(full_id))


@command("update-invitation")
@click.argument("invitation_id")
@click.argument("perm", type=PERMISSION)
def update_invitation(invitation_id: str, perm: str) -> None:
    """Change what an invitation that you sent offers."""
    _change_invitation(invitation_id, "updated", lambda api, full_id: api.VFolder.update_invitation(full_id, perm))


@command("share")
@click.argument("name")
@click.argument("emails", nargs=-1, required=True)
@click.option("-p", "--perm", type=PERMISSION, default="rw", show_default=True, help="What they may do.")
def share(name: str, emails: tuple[str, ...], perm: str) -> None:
    """Say what single members may do with a group's folder; for administrators."""

    async def work(api: AsyncSession) -> dict[str, Any]:
        return {"shared": await (await open_folder(api, name)).share(perm, emails)}

    change(work, {}, "", lines=lambda made: "\n".join(f"shared with {email}" for email in made["shared"]))


@command("unshare")
@click.argument("name")
@click.argument("emails", nargs=-1, required=True)
def unshare(name: str, emails: tuple[str, ...]) -> None:
    """End what was said for single members; for administrators."""

    async def work(api: AsyncSession) -> dict[str, Any]:
        return {"unshared": await (await open_folder(api, name)).unshare(emails)}

    change(work, {}, "", lines=lambda made: "\n".join(f"no longer shared with {email}" for email in made["unshared"]))


@list_command("shared")
@click.argument("name", required=False)
def shared(name: str | None) -> None:
    """List who shares your folders, or the folder NAME."""
    list_shares(name)


def list_shares(folder: str | None) -> None:
    """Print who shares this folder, or any of the caller's."""

    async def load(api: AsyncSession) -> list[dict[str, Any]]:
        shares = await api.VFolder.list_shared(await folder_id(api, folder) if folder else None)
        return [{**one, "email": one["shared_to"]["email"], "user": one["shared_to"]["uuid"]} for one in shares]

    list_them(load, SHARE_COLUMNS, "nobody shares them")


@command("leave")
@click.argument("name")
@click.option("-s", "--shared-user-uuid", metavar="UUID", help="End the share of this user; for owners.")
def leave(name: str, shared_user_uuid: str | None) -> None:
    """Give up a folder that somebody shares with you."""
    change_folder(name, lambda folder: folder.leave(shared_user_uuid), {"left": name}, f"left {name}")
