"""Host permissions of identity."""

from __future__ import annotations

from typing import Any

from ai.backend.common.errors import InvalidInput
from ai.backend.common.folders import HostPermission, parse_host

_KNOWN = {permission.value: permission for permission in HostPermission}


_WORDS = {
    HostPermission.CREATE: "create folders",
    HostPermission.MODIFY: "change folders",
    HostPermission.DELETE: "delete folders",
    HostPermission.MOUNT: "mount folders in sessions",
    HostPermission.UPLOAD: "upload files",
    HostPermission.DOWNLOAD: "download files",
    HostPermission.INVITE: "invite others",
    HostPermission.SET_USER_PERMISSION: "set what single users may do",
}


def read_hosts(given: Any) -> dict[str, tuple[str, ...]]:
    """What an administrator gives as ``allowed_vfolder_hosts``: host -> names of permissions; a mere list of hosts
    allows everything on them (spec 03-09).

    Raises:
        InvalidInput: another shape, no host, or no such permission.
    """
    everything = tuple(_KNOWN)
    if isinstance(given, list) and all(isinstance(host, str) for host in given):
        given = dict.fromkeys(given, everything)
    if not isinstance(given, dict):
        raise InvalidInput("Hosts are an object of host to permissions.", data={"allowed_vfolder_hosts": "malformed"})
    for host, permissions in given.items():
        parse_host(host)
        unknown = (
            [p for p in permissions if p not in _KNOWN] if isinstance(permissions, list | tuple) else [permissions]
        )
        if unknown:
            raise InvalidInput(
                f"{str(unknown[0])[:64]!r} is not one of {', '.join(_KNOWN)}.", data={"allowed_vfolder_hosts": host}
            )
    return {host: tuple(dict.fromkeys(permissions)) for host, permissions in given.items()}
