"""Tests what every hook plugin must satisfy. A subclass of the contract makes the plugin::

class TestMine(HookContract):
    def make(self) -> AbstractHook:
        return Mine(MySettings(...))
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from decimal import Decimal
from typing import TypeVar

import pytest

from ai.backend.common.slots import ResourceSlot
from ai.backend.plugin.hooks import AbstractHook, Account, HookDenied, SessionRequest, SignOn, TokenSignOn

T = TypeVar("T")
WITHIN_S = 5.0
ACCOUNT = Account(email="user@example.com", username="user", domain_name="default", role="user")
HOSTILE_TEXTS = (
    "",
    " ",
    "a" * 10_000,
    "\0",
    "\udcff",
    "../../etc/passwd",
    "' OR 1=1 --",
    "${jndi:x}",
    "한글",
    "\r\nX: y",
)


def session_request(owner: Account = ACCOUNT, hostile_text: str = "python:3.11") -> SessionRequest:
    return SessionRequest(
        owner=owner,
        name="session",
        session_type="interactive",
        group_name="default",
        resource_group="default",
        image=hostile_text,
        cluster_size=1,
        slots=ResourceSlot({"cpu": Decimal(1), "mem": Decimal(2**30)}),
        mounts=(hostile_text,),
        environ={"A": hostile_text},
    )


async def _answer(hook_call: Awaitable[T]) -> T | None:
    """Returns the answer of a plugin's method; None if the plugin denies the request.

    Fails the test if the denial has no text.
    """
    try:
        return await hook_call
    except HookDenied as denial:
        if not str(denial):
            pytest.fail("a denial says why")
        return None


class HookContract:
    """Tests a hook plugin that a subclass makes."""

    def make(self) -> AbstractHook:
        pytest.fail("override make()")

    @pytest.fixture
    async def hook(self) -> AsyncIterator[AbstractHook]:
        hook = self.make()
        await hook.start()
        yield hook
        await hook.stop()

    @pytest.mark.parametrize("text", HOSTILE_TEXTS)
    async def test_hostile_names_and_secrets_open_nothing(self, hook: AbstractHook, text: str) -> None:
        async with asyncio.timeout(WITHIN_S):
            for name, secret in ((text, "secret"), ("user@example.com", text), (text, text)):
                request = SignOn(name=name, secret=secret, address="192.0.2.1")
                assert await _answer(hook.sign_on(request)) is None
                assert await _answer(hook.sign_on_user(request)) is None
            assert await _answer(hook.sign_on_token(TokenSignOn(token=text, address="192.0.2.1"))) is None

    @pytest.mark.parametrize("text", HOSTILE_TEXTS)
    async def test_checks_answer_or_deny_with_a_reason(self, hook: AbstractHook, text: str) -> None:
        account = Account(email=text, username=text, domain_name=text, role="user")
        async with asyncio.timeout(WITHIN_S):
            for check_call in (hook.check_sign_on(account, text), hook.check_session(session_request(account, text))):
                await _answer(check_call)

    @pytest.mark.parametrize("text", HOSTILE_TEXTS)
    async def test_browsers_that_nobody_sent_are_refused(self, hook: AbstractHook, text: str) -> None:
        """A redirect that the plugin did not begin raises an error, which need not be a denial."""
        async with asyncio.timeout(WITHIN_S):
            with pytest.raises(Exception):  # noqa: B017, PT011  # any refuses
                await hook.finish_redirect(text, text, {"state": text, "code": text})

    async def test_equal_requests_get_equal_answers_also_at_once(self, hook: AbstractHook) -> None:
        answers = await asyncio.gather(
            *(hook.check_session(session_request()) for _ in range(20)), return_exceptions=True
        )
        assert len(set(map(str, answers))) == 1

    async def test_a_secret_is_in_no_text_of_a_request(self) -> None:
        assert "hidden" not in repr(SignOn(name="n", secret="hidden", address="a"))

    async def test_it_may_be_stopped_and_made_again(self) -> None:
        for _ in range(2):
            hook = self.make()
            await hook.start()
            await hook.stop()
