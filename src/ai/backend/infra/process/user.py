"""Changes the user of a daemon that root started."""

from __future__ import annotations

import grp
import os
import pwd

from ai.backend.common.errors import InvalidInput


def change_user(user: str | int | None, group: str | int | None) -> None:
    """Changes the user and the group of this process for good. None keeps the present user or group. A group that is
    not named is the user's.

    Raises InvalidInput: there is no such user or group, or only root could change to them.
    """
    if user is None and group is None:
        return
    uid, default_gid, user_name = _look_up_user(user) if user is not None else (os.geteuid(), os.getegid(), None)
    gid = _look_up_group(group) if group is not None else default_gid
    if (uid, gid) == (os.geteuid(), os.getegid()):
        return
    if os.geteuid() != 0:
        message = "Only root can change to manager.user and manager.group: start the daemon as that user."
        raise InvalidInput(message, data={"manager.user": str(user), "manager.group": str(group)})
    if user_name is not None:
        os.initgroups(user_name, gid)
    else:
        os.setgroups([gid])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def _look_up_user(user: str | int) -> tuple[int, int, str | None]:
    """Returns the id, the group and the name of a user. A numeric user needs no account."""
    try:
        account = pwd.getpwnam(user) if isinstance(user, str) and not user.isdigit() else pwd.getpwuid(int(user))
    except KeyError:
        if isinstance(user, str) and not user.isdigit():
            raise InvalidInput(f"There is no user {user}.", data={"manager.user": user}) from None
        return int(user), int(user), None
    return account.pw_uid, account.pw_gid, account.pw_name


def _look_up_group(group: str | int) -> int:
    try:
        return grp.getgrnam(group).gr_gid if isinstance(group, str) and not group.isdigit() else int(group)
    except KeyError:
        raise InvalidInput(f"There is no group {group}.", data={"manager.group": str(group)}) from None
