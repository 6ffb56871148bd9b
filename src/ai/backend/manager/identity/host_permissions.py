"""Reads the permissions on storage hosts that administrators set."""

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


def read_hosts(value: Any) -> dict[str, tuple[str, ...]]:
    """Reads ``allowed_vfolder_hosts``: host -> names of permissions; a plain list of hosts allows all (spec 03-09).

    Raises:
        InvalidInput: another shape, no host, or no such permission.
    """
    everything = tuple(_KNOWN)
    if isinstance(value, list) and all(isinstance(host, str) for host in value):
        value = dict.fromkeys(value, everything)
    if not isinstance(value, dict):
        raise InvalidInput("Hosts are an object of host to permissions.", data={"allowed_vfolder_hosts": "malformed"})
    for host, permissions in value.items():
        parse_host(host)
        unknown = (
            [p for p in permissions if p not in _KNOWN] if isinstance(permissions, list | tuple) else [permissions]
        )
        if unknown:
            raise InvalidInput(
                f"{str(unknown[0])[:64]!r} is not one of {', '.join(_KNOWN)}.", data={"allowed_vfolder_hosts": host}
            )
    return {host: tuple(dict.fromkeys(permissions)) for host, permissions in value.items()}
