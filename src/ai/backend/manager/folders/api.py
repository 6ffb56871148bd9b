"""REST routes of virtual folders (spec 03-08 "Virtual Folders", client wire contract 2.5)."""

from __future__ import annotations

import builtins
from contextlib import suppress
from typing import Any
from uuid import UUID

from msgspec.structs import asdict

from ai.backend.common.errors import BackendError, InvalidInput, InvalidQuantity
from ai.backend.common.slots import BinarySize
from ai.backend.infra.http.decode import refuse
from ai.backend.infra.http.routes import Call, Nothing, OwnerKey, Reply, route
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.requests import STORAGE_PROBLEMS, caller_of
from ai.backend.manager.folders import schemas as schema
from ai.backend.manager.folders import views
from ai.backend.manager.folders.facade import Folders
from ai.backend.manager.folders.model import CreateFolder, FolderUsage, Ticket


def _quota_bytes(value: int | str | None) -> int | None:
    if value is None:
        return None
    try:
        size = int(BinarySize.parse(str(value)))
    except InvalidQuantity as e:
        raise InvalidInput(f"quota: {e.message}", data={"quota": "malformed"}) from None
    if size > schema.MAX_BYTES:
        raise refuse({"quota": f"at most {schema.MAX_BYTES} bytes"})
    return size or None


def _folder_ref(call: Call[Any, Any]) -> tuple[Caller, str]:
    """Returns the caller, and the name or id of the folder in the path."""
    return caller_of(call), call.params["f"]


def _ticket_view(ticket: Ticket) -> schema.TransferTicket:
    return schema.TransferTicket(token=ticket.token, url=ticket.url)


class FolderTypesApi:
    """The route that lists the kinds of folder owners; served also where no folders are stored."""

    def __init__(self, *, has_folders: bool) -> None:
        self._has_folders = has_folders

    @route("GET", "/config/vfolder-types")
    async def vfolder_types(self, call: Call) -> list[str]:
        """List the kinds of owners of virtual folders; empty if no folders are stored."""
        return ["user", "group"] if self._has_folders else []


class FoldersApi:
    """Routes about whole folders and their files. ``{f}`` is a name or an id."""

    owner_key = OwnerKey.ASSUMED
    problems = STORAGE_PROBLEMS

    def __init__(self, folders: Folders) -> None:
        self._service = folders.service
        self._files = folders.files
        self._quotas = folders.quotas

    # ---- many ----

    @route("GET", "/folders", query=schema.ListQuery, reply=list[schema.FolderItem])
    async def list(self, call: Call[Nothing, schema.ListQuery]) -> Any:
        """Lists the folders that the caller may use."""
        query = call.query
        folders = await self._service.list(caller_of(call), lists_all=query.all, group=query.group_id)
        if query.owner_user_email is not None:
            folders = [access for access in folders if access.row.owner_email == query.owner_user_email]
        return [views.folder_item(access) for access in folders if access.folder.status.is_live is not query.trash]

    @route("GET", "/folders/_/hosts", query=schema.HostsQuery)
    async def hosts(self, call: Call[Nothing, schema.HostsQuery]) -> schema.HostsReply:
        """Lists the storage hosts that the caller may use."""
        return views.hosts_reply(*await self._service.hosts(caller_of(call), call.query.group_id))

    @route("GET", "/folders/_/all_hosts")
    @route("GET", "/folders/_/all-hosts")
    async def all_hosts(self, call: Call) -> schema.HostsReply:
        """Lists all storage hosts, for superadmins."""
        return views.hosts_reply(*await self._service.all_hosts(caller_of(call)))

    @route("GET", "/folders/_/allowed_types")
    @route("GET", "/folders/_/allowed-types")
    async def allowed_types(self, call: Call) -> builtins.list[str]:
        """Lists the types of owners: users and groups."""
        caller_of(call)
        return ["user", "group"]

    @route("GET", "/folders/_/id", query=schema.NameQuery)
    async def id_of(self, call: Call[Nothing, schema.NameQuery]) -> schema.FolderId:
        """Returns the id of a folder, also of one in the trash."""
        return {"id": str((await self._service.get(caller_of(call), call.query.name)).folder.id)}

    @route(
        "POST", "/folders", body=schema.CreateFolderBody, body_aliases=schema.CREATE_ALIASES, reply=schema.FolderItem,
        status=201,
    )  # fmt: skip
    async def create(self, call: Call[schema.CreateFolderBody]) -> Reply:
        """Creates a folder."""
        body = call.body
        values = {name: value for name, value in asdict(body).items() if name != "quota"}
        values["unmanaged_path"] = body.unmanaged_path or None
        request = CreateFolder(**values, max_size=_quota_bytes(body.quota))
        return Reply(views.folder_item(await self._service.create(caller_of(call), request)), 201)

    @route("DELETE", "/folders", query=schema.IdQuery)
    async def delete_by_id(self, call: Call[Nothing, schema.IdQuery]) -> None:
        """Moves a folder into the trash."""
        ref = call.query.id or call.query.vfolder_id
        if ref is None:
            raise refuse({"id": "required"})
        await self._service.trash(caller_of(call), ref)

    @route("POST", "/folders/purge", body=schema.IdBody, body_aliases=schema.ID_ALIASES)
    @route("POST", "/folders/delete-from-trash-bin", body=schema.IdBody, body_aliases=schema.ID_ALIASES)
    async def purge(self, call: Call[schema.IdBody]) -> None:
        """Deletes a folder in the trash for ever."""
        await self._service.purge(caller_of(call), call.body.id)

    @route("POST", "/folders/restore-from-trash-bin", body=schema.IdBody, body_aliases=schema.ID_ALIASES)
    async def restore(self, call: Call[schema.IdBody]) -> None:
        """Restores a folder from the trash."""
        await self._service.restore(caller_of(call), call.body.id)

    @route("POST", "/folders/_/change-ownership", body=schema.ChangeOwnerBody)
    async def change_owner(self, call: Call[schema.ChangeOwnerBody]) -> schema.Message:
        """Gives a user's folder to another user, for superadmins."""
        await self._service.change_owner(caller_of(call), call.body.vfolder, call.body.user_email)
        return schema.Message("changed")

    @route("GET", "/folders/_/quota", query=schema.QuotaQuery)
    async def quota(self, call: Call[Nothing, schema.QuotaQuery]) -> schema.QuotaUsage:
        """Returns usage and limit of the quota scope of a folder."""
        folder = (await self._service.get(caller_of(call), call.query.id)).folder
        usage = await self._quotas.get(caller_of(call), folder.host, folder.quota_scope)
        return {
            "quota_scope_id": folder.quota_scope,
            "used_bytes": usage.used_bytes,
            "limit_bytes": usage.limit_bytes,
            "enforcement": usage.enforcement,
        }

    @route("POST", "/folders/_/quota", body=schema.QuotaBody)
    async def set_quota(self, call: Call[schema.QuotaBody]) -> schema.SizeReply:
        """Limits the quota scope of a folder, for superadmins."""
        size = call.body.input.size_bytes
        folder = (await self._service.get(caller_of(call), call.body.id)).folder
        await self._quotas.set_limit(caller_of(call), folder.host, folder.quota_scope, size)
        return {"size_bytes": size}

    # ---- one ----

    @route("GET", "/folders/{f}", reply=schema.FolderInfo)
    async def get_info(self, call: Call) -> schema.FolderInfo:
        """Returns a folder with its usage."""
        access = await self._service.get(*_folder_ref(call))
        usage: FolderUsage | None = None
        if access.folder.status.is_live:
            with suppress(BackendError):  # the rest of the reply needs no storage proxy
                usage = await self._service.usage(access)
        return views.folder_info(access, usage)

    @route("DELETE", "/folders/{f}", query=schema.ModelIdQuery)
    async def delete(self, call: Call[Nothing, schema.ModelIdQuery]) -> None:
        """Moves a folder to the trash; 409 while a session mounts it."""
        await self._service.trash(*_folder_ref(call))

    @route("POST", "/folders/{f}/rename", body=schema.RenameBody, reply=schema.Message, status=201)
    async def rename(self, call: Call[schema.RenameBody]) -> Reply:
        """Renames a folder."""
        await self._service.rename(*_folder_ref(call), call.body.new_name)
        return Reply(schema.Message("renamed"), 201)

    @route("POST", "/folders/{f}/update-options", body=schema.UpdateBody, reply=schema.Message, status=201)
    async def update(self, call: Call[schema.UpdateBody]) -> Reply:
        """Changes permission, usage mode and cloneability of a folder."""
        await self._service.update(*_folder_ref(call), **asdict(call.body))
        return Reply(schema.Message("updated"), 201)

    @route("POST", "/folders/{f}/clone", body=schema.CloneBody)
    async def clone(self, call: Call[schema.CloneBody]) -> schema.ClonedFolder:
        """Clones a folder; ``bgtask_id`` names the task that copies the files."""
        body = call.body
        request = CreateFolder(
            name=body.target_name,
            host=body.target_host,
            usage_mode=body.usage_mode,
            permission=body.permission,
            cloneable=body.cloneable,
        )
        access, task_id = await self._service.clone(*_folder_ref(call), request)
        return schema.ClonedFolder(**asdict(views.folder_item(access)), bgtask_id=str(task_id))

    # ---- files ----

    @route("GET", "/folders/{f}/files", query=schema.FilesQuery)
    async def list_files(self, call: Call[Nothing, schema.FilesQuery]) -> schema.FilesReply:
        """Lists the files of a directory."""
        query = call.query
        files, cursor = await self._files.list(*_folder_ref(call), query.path, limit=query.limit, cursor=query.cursor)
        return views.listing_reply(files, cursor, is_page=query.limit is not None)

    @route(
        "POST",
        "/folders/{f}/mkdir",
        body=schema.MakeDirectoryBody,
        reply=schema.DirectoriesReply,
        status=201,
        also=(207,),
    )
    async def mkdir(self, call: Call[schema.MakeDirectoryBody]) -> Reply:
        """Creates directories: 201 if all were created, 207 if some, 400 if none."""
        body = call.body
        paths = [body.path] if isinstance(body.path, str) else body.path
        problem_by_path = await self._files.make_directories(
            *_folder_ref(call), paths, parents=body.parents, exist_ok=body.exist_ok
        )
        problems = [problem for problem in problem_by_path.values() if problem is not None]
        if len(problems) == len(problem_by_path):
            raise InvalidInput("; ".join(problems), data=views.mkdir_reply(problem_by_path))
        return Reply(views.mkdir_reply(problem_by_path), 207 if problems else 201)

    @route("POST", "/folders/{f}/request-upload", body=schema.UploadBody, reply=schema.TransferTicket)
    async def request_upload(self, call: Call[schema.UploadBody]) -> schema.TransferTicket:
        """Returns where to upload a file by tus; an empty file is created at once."""
        body = call.body
        return _ticket_view(await self._files.upload_ticket(*_folder_ref(call), body.path, body.size))

    @route("POST", "/folders/{f}/request-uploads", body=schema.UploadsBody, reply=schema.TransferTickets)
    async def request_uploads(self, call: Call[schema.UploadsBody]) -> schema.TransferTickets:
        """Returns where to upload several files, so that a directory of many files takes few requests."""
        sizes = [(file.path, file.size) for file in call.body.files]
        tickets = await self._files.upload_tickets(*_folder_ref(call), sizes)
        return schema.TransferTickets(tickets=[_ticket_view(ticket) for ticket in tickets])

    @route(
        "POST", "/folders/{f}/request-downloads", body=schema.DownloadsBody, reply=schema.TransferTickets,
        audited=False, repeatable=True,
    )  # fmt: skip
    async def request_downloads(self, call: Call[schema.DownloadsBody]) -> schema.TransferTickets:
        """Returns where to download several files, so that a directory of many files takes few requests."""
        tickets = await self._files.download_tickets(*_folder_ref(call), call.body.files)
        return schema.TransferTickets(tickets=[_ticket_view(ticket) for ticket in tickets])

    @route(
        "POST", "/folders/{f}/request-download", body=schema.DownloadBody, body_aliases={"file": "path"},
        reply=schema.TransferTicket, audited=False, repeatable=True,
    )  # fmt: skip
    async def request_download(self, call: Call[schema.DownloadBody]) -> schema.TransferTicket:
        """Returns where to download a file, or with ``archive`` a directory as a zip."""
        body = call.body
        return _ticket_view(await self._files.download_ticket(*_folder_ref(call), body.path, archive=body.archive))

    @route("POST", "/folders/{f}/rename-file", body=schema.RenameFileBody)
    @route("POST", "/folders/{f}/rename_file", body=schema.RenameFileBody)
    async def rename_file(self, call: Call[schema.RenameFileBody]) -> schema.Message:
        """Renames a file or directory."""
        body = call.body
        await self._files.rename(*_folder_ref(call), body.target_path, body.new_name, is_directory=body.is_dir)
        return schema.Message("renamed")

    @route("POST", "/folders/{f}/move-file", body=schema.MoveFileBody)
    async def move_file(self, call: Call[schema.MoveFileBody]) -> schema.Message:
        """Moves a file or directory."""
        await self._files.move(*_folder_ref(call), call.body.src, call.body.dst)
        return schema.Message("moved")

    @route("DELETE", "/folders/{f}/delete-files", query=schema.DeleteFilesQuery)
    @route("DELETE", "/folders/{f}/delete_files", query=schema.DeleteFilesQuery)
    async def delete_files(self, call: Call[Nothing, schema.DeleteFilesQuery]) -> schema.Message:
        """Deletes files; directories with ``recursive``."""
        return await self._delete(call, call.query)

    @route("POST", "/folders/{f}/delete-files", body=schema.DeleteFilesQuery)
    async def delete_files_by_post(self, call: Call[schema.DeleteFilesQuery]) -> schema.Message:
        """Deletes files, for proxies that drop the bodies of DELETE."""
        return await self._delete(call, call.body)

    async def _delete(self, call: Call[Any, Any], request: schema.DeleteFilesQuery) -> schema.Message:
        await self._files.delete(*_folder_ref(call), request.files, recursive=request.recursive)
        return schema.Message("deleted")


class FolderSharingApi:
    """Routes about invitations and shares."""

    owner_key = OwnerKey.ASSUMED
    problems = STORAGE_PROBLEMS

    def __init__(self, folders: Folders) -> None:
        self._sharing = folders.sharing

    @route("POST", "/folders/{f}/invite", body=schema.InviteBody, body_aliases=schema.INVITE_ALIASES)
    async def invite(self, call: Call[schema.InviteBody]) -> schema.InvitedReply:
        """Invites other users to a folder."""
        body = call.body
        return {"invited_ids": await self._sharing.invite(*_folder_ref(call), body.perm, body.emails)}

    @route("GET", "/folders/invitations/list")
    async def received(self, call: Call) -> schema.InvitationsReply:
        """Lists the pending invitations to the caller."""
        return {
            "invitations": [
                views.invitation_item(invitation)
                for invitation in await self._sharing.received_invitations(caller_of(call))
            ]
        }

    @route("GET", "/folders/invitations/list-sent")
    @route("GET", "/folders/invitations/list_sent")
    async def sent(self, call: Call) -> schema.InvitationsReply:
        """Lists the pending invitations by the caller."""
        return {
            "invitations": [
                views.invitation_item(invitation)
                for invitation in await self._sharing.sent_invitations(caller_of(call))
            ]
        }

    @route("POST", "/folders/invitations/accept", body=schema.InvitationBody)
    async def accept(self, call: Call[schema.InvitationBody]) -> schema.Message:
        """Accepts an invitation."""
        await self._sharing.accept(caller_of(call), call.body.inv_id)
        return schema.Message("accepted")

    @route("DELETE", "/folders/invitations/delete", query=schema.InvitationBody)
    async def reject(self, call: Call[Nothing, schema.InvitationBody]) -> schema.Message:
        """Rejects an invitation, or withdraws one of the caller's."""
        await self._sharing.reject(caller_of(call), call.query.inv_id)
        return schema.Message("deleted")

    @route("POST", "/folders/invitations/update/{inv_id}", body=schema.AmendBody, body_aliases={"permission": "perm"})
    async def amend(self, call: Call[schema.AmendBody]) -> schema.Message:
        """Changes the permission of an invitation."""
        try:
            invitation_id = UUID(call.params["inv_id"])
        except ValueError:
            raise refuse({"inv_id": "not an id"}) from None
        await self._sharing.amend(caller_of(call), invitation_id, call.body.perm)
        return schema.Message("updated")

    @route(
        "POST",
        "/folders/{f}/share",
        body=schema.ShareBody,
        body_aliases=schema.SHARE_ALIASES,
        reply=schema.SharedEmailsReply,
        status=201,
    )
    async def share(self, call: Call[schema.ShareBody]) -> Reply:
        """Sets the permission of single members on a group's folder."""
        body = call.body
        shared_emails = await self._sharing.share(*_folder_ref(call), body.permission, body.emails)
        return Reply({"shared_emails": shared_emails}, 201)

    @route("DELETE", "/folders/{f}/unshare", query=schema.UnshareQuery)
    async def unshare(self, call: Call[Nothing, schema.UnshareQuery]) -> schema.UnsharedEmailsReply:
        """Removes the permissions of single members."""
        return {"unshared_emails": await self._sharing.unshare(*_folder_ref(call), call.query.emails)}

    @route("GET", "/folders/_/shared", query=schema.SharedQuery)
    async def shares(self, call: Call[Nothing, schema.SharedQuery]) -> schema.SharesReply:
        """Lists the shares of the caller's folders."""
        shares = await self._sharing.shares(caller_of(call), call.query.vfolder_id)
        return {"shared": [views.share_item(access, share) for access, share in shares]}

    @route("POST", "/folders/_/shared", body=schema.SetShareBody)
    async def set_share(self, call: Call[schema.SetShareBody]) -> schema.Message:
        """Changes a share, or ends it with ``perm`` null."""
        body = call.body
        await self._sharing.set_share(caller_of(call), body.vfolder, body.user, body.perm)
        return schema.Message("updated" if body.perm is not None else "ended")

    @route("POST", "/folders/{f}/leave", body=schema.LeaveBody)
    async def leave(self, call: Call[schema.LeaveBody]) -> schema.Message:
        """Ends a share of the caller."""
        await self._sharing.leave(*_folder_ref(call), call.body.shared_user_uuid)
        return schema.Message("left")
