"""Blocking classes of virtual folders."""

from __future__ import annotations

from uuid import UUID

from ai.backend.client.func.vfolder import AsyncVFolder, AsyncVFolders
from ai.backend.client.portal import Facade, blocking, iterating


class VFolder(Facade[AsyncVFolder]):
    """The blocking handle of a folder."""

    info = blocking(AsyncVFolder.info)
    rename = blocking(AsyncVFolder.rename)
    update_options = blocking(AsyncVFolder.update_options)
    delete = blocking(AsyncVFolder.delete)
    get_id = blocking(AsyncVFolder.get_id)
    restore = blocking(AsyncVFolder.restore)
    purge = blocking(AsyncVFolder.purge)
    clone = blocking(AsyncVFolder.clone)
    invite = blocking(AsyncVFolder.invite)
    share = blocking(AsyncVFolder.share)
    unshare = blocking(AsyncVFolder.unshare)
    leave = blocking(AsyncVFolder.leave)
    list_files = blocking(AsyncVFolder.list_files)
    iterate_files = iterating(AsyncVFolder.iterate_files)
    mkdir = blocking(AsyncVFolder.mkdir)
    rename_file = blocking(AsyncVFolder.rename_file)
    move_file = blocking(AsyncVFolder.move_file)
    delete_files = blocking(AsyncVFolder.delete_files)
    request_upload = blocking(AsyncVFolder.request_upload)
    request_download = blocking(AsyncVFolder.request_download)
    upload = blocking(AsyncVFolder.upload)
    download = blocking(AsyncVFolder.download)
    download_archive = blocking(AsyncVFolder.download_archive)

    @property
    def name(self) -> str:
        return self._inner.name


class VFolders(Facade[AsyncVFolders]):
    """``api_session.VFolder`` of a blocking session."""

    create = blocking(AsyncVFolders.create)
    list = blocking(AsyncVFolders.list)
    paginated_list = blocking(AsyncVFolders.paginated_list)
    list_hosts = blocking(AsyncVFolders.list_hosts)
    list_all_hosts = blocking(AsyncVFolders.list_all_hosts)
    list_allowed_types = blocking(AsyncVFolders.list_allowed_types)
    delete_by_id = blocking(AsyncVFolders.delete_by_id)
    invitations = blocking(AsyncVFolders.invitations)
    sent_invitations = blocking(AsyncVFolders.sent_invitations)
    accept_invitation = blocking(AsyncVFolders.accept_invitation)
    delete_invitation = blocking(AsyncVFolders.delete_invitation)
    update_invitation = blocking(AsyncVFolders.update_invitation)
    list_shared = blocking(AsyncVFolders.list_shared)
    update_shared = blocking(AsyncVFolders.update_shared)
    change_ownership = blocking(AsyncVFolders.change_ownership)

    def __call__(self, name: str | UUID) -> VFolder:
        return VFolder(self._portal, self._inner(name))
