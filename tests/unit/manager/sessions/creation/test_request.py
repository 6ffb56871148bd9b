"""Small rules of requests: environments, rights, kill points."""

from __future__ import annotations

from uuid import UUID

import pytest

from ai.backend.common.errors import InvalidInput, InvalidName
from ai.backend.common.ids import AccessKey, DomainName, UserId
from ai.backend.common.states import UserRole
from ai.backend.common.structs import replace
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.sessions.creation.request import check_environ
from ai.backend.manager.sessions.lifecycle.kernel_spec import kernel_spec
from ai.backend.manager.sessions.lookup import controls, sees
from tests.contract.store.builders import make_session, placed


def test_environments_are_checked() -> None:
    assert check_environ({"A_1": "ü"}, max_bytes=10) == {"A_1": "ü"}
    with pytest.raises(InvalidName):
        check_environ({"A-1": ""}, max_bytes=10)
    with pytest.raises(InvalidInput):
        check_environ({"A": "\0"}, max_bytes=10)
    with pytest.raises(InvalidInput):
        check_environ({"A": "x" * 10}, max_bytes=10)


def caller(role: UserRole, *, domain: str = "default", user: int = 1) -> Caller:
    return Caller(
        user_id=UserId(UUID(int=user)),
        email="x@local",
        username="x",
        role=role,
        domain_name=DomainName(domain),
        access_key=AccessKey("AKIAX"),
        is_admin=False,
        resource_policy="default",
        rate_limit=1,
    )


@pytest.mark.parametrize(
    ("who", "may_see", "may_control"),
    [
        (caller(UserRole.USER), False, False),
        (caller(UserRole.USER, user=8), True, True),
        (caller(UserRole.ADMIN), True, True),
        (caller(UserRole.ADMIN, domain="other"), False, False),
        (caller(UserRole.SUPERADMIN, domain="other"), True, True),
        (caller(UserRole.MONITOR, domain="other"), True, False),
    ],
)
def test_roles_bound_what_is_seen_and_controlled(who: Caller, may_see: bool, may_control: bool) -> None:
    session = make_session()
    assert (sees(who, session), controls(who, session)) == (may_see, may_control)


def test_an_agent_is_told_everything() -> None:
    session = replace(
        placed(make_session(size=2)).new, startup_command="make", batch_timeout_s=3.0, resource_opts={"shmem": "1024"}
    )
    main, sub = (kernel_spec(session, k) for k in session.kernels)
    assert (main.slots, main.devices) == ({"cpu": "2", "cuda.shares": "0.3"}, {"cuda.shares": {"gpu0": "0.3"}})
    assert (main.attempt, main.shmem_bytes, main.cluster.size) == (1, 1024, 2)
    assert main.environ["A"] == "ü"
    assert main.environ["BACKENDAI_PREOPEN_PORTS"] == "8080"
    assert main.environ["BACKENDAI_ACCESS_KEY"] == session.access_key
    assert (main.startup_command, main.batch_timeout_s) == ("make", 3.0)
    assert (sub.startup_command, sub.batch_timeout_s) == (None, None)
    mine = replace(session, environ={"BACKENDAI_SESSION_ID": "forged"})
    assert kernel_spec(mine, mine.main).environ["BACKENDAI_SESSION_ID"] == str(session.id)
