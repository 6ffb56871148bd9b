"""REST routes of a user's own account: one-time passwords, sign-ins, keypair."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from msgspec import Meta

from ai.backend.common.errors import AuthenticationFailed, Conflict, NotFound
from ai.backend.infra.http.fields import EmptyReply, Name
from ai.backend.infra.http.routes import Call, Nothing, Schema, route
from ai.backend.manager.access.requests import caller_of
from ai.backend.manager.identity.model import User
from ai.backend.manager.identity.passwords import MAX_PASSWORD_LENGTH
from ai.backend.manager.identity.proofs import ProofService
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.identity.sign_in import SignInService
from ai.backend.manager.identity.totp import TotpService
from ai.backend.manager.identity.users import UserService

OneTimePassword = Annotated[str, Meta(min_length=1, max_length=64)]


class OtpBody(Schema, frozen=True):
    """A one-time password, or a recovery code if the caller's device is active already."""

    otp: OneTimePassword


class RemoveTotpQuery(Schema, frozen=True):
    """The one-time password of the caller, or the ``email`` of the user whose device an administrator removes."""

    otp: OneTimePassword | None = None
    email: Name | None = None


class SignInsQuery(Schema, frozen=True):
    email: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    offset: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


class TotpStatus(TypedDict):
    """Says whether the caller has one-time passwords, since when, and how many recovery codes are left.

    ``created_at`` is null without one-time passwords.
    """

    totp_activated: bool
    created_at: str | None
    recovery_codes_left: int


class TotpDevice(TypedDict):
    """A new key for an authenticator app; ``totp_uri`` is the URI that such apps read as a QR code."""

    totp_key: str
    totp_uri: str


class RecoveryCodes(TypedDict):
    """New recovery codes; each can be used once, and they are shown only in this reply."""

    recovery_codes: list[str]


class SignIn(TypedDict):
    at: str
    address: str
    method: str
    outcome: str


class SignIns(TypedDict):
    items: list[SignIn]
    total_count: int


class ProofBody(Schema, frozen=True):
    """The password of the caller, or a one-time password or recovery code if the caller has one-time passwords."""

    password: Annotated[str, Meta(max_length=MAX_PASSWORD_LENGTH)] = ""
    otp: Annotated[str, Meta(max_length=64)] = ""


class ProofReply(TypedDict):
    """A proof of the caller's identity, to be sent in the header ``X-BackendAI-Proof`` until ``expires_at``."""

    proof: str
    expires_at: str


class RotatedKeypair(TypedDict):
    access_key: str
    secret_key: str


_OTP_PROBLEMS = (AuthenticationFailed, NotFound, Conflict)


class AccountsApi:
    """Routes of the caller's own account. Administrators name another user's by e-mail address."""

    def __init__(
        self,
        identity: IdentityService,
        users: UserService,
        totp: TotpService,
        sign_in: SignInService,
        proofs: ProofService,
    ) -> None:
        self._identity = identity
        self._users = users
        self._totp = totp
        self._sign_in = sign_in
        self._proofs = proofs

    @route("GET", "/totp")
    async def totp(self, call: Call) -> TotpStatus:
        """Says whether the caller must give a one-time password to sign in, and how many recovery codes are left."""
        device = await self._totp.status(caller_of(call).user_id)
        if device is None or not device.is_active:
            return {"totp_activated": False, "created_at": None, "recovery_codes_left": 0}
        created_at = device.created_at.isoformat()
        return {"totp_activated": True, "created_at": created_at, "recovery_codes_left": device.recovery_codes}

    @route("POST", "/totp", problems=_OTP_PROBLEMS)
    async def begin_totp(self, call: Call) -> TotpDevice:
        """Makes a key for an authenticator app, which counts for nothing before it is confirmed."""
        device = await self._totp.begin(await self._own_user(call))
        return {"totp_key": device.key, "totp_uri": device.uri}

    @route("POST", "/totp/verify", body=OtpBody, problems=_OTP_PROBLEMS)
    async def confirm_totp(self, call: Call[OtpBody]) -> RecoveryCodes:
        """Confirms the key by a one-time password: from now on, signing in takes one."""
        codes = await self._totp.confirm(await self._own_user(call), call.body.otp)
        return {"recovery_codes": list(codes)}

    @route("POST", "/totp/recovery-codes", body=OtpBody, problems=_OTP_PROBLEMS)
    async def new_recovery_codes(self, call: Call[OtpBody]) -> RecoveryCodes:
        """Replaces the recovery codes."""
        codes = await self._totp.new_recovery_codes(await self._own_user(call), call.body.otp)
        return {"recovery_codes": list(codes)}

    @route("DELETE", "/totp", query=RemoveTotpQuery, problems=_OTP_PROBLEMS)
    async def remove_totp(self, call: Call[Nothing, RemoveTotpQuery]) -> EmptyReply:
        """Removes the one-time passwords of the caller, who gives one, or of another user, for administrators. The
        fields come in a JSON body, as queries are logged."""
        query = call.query
        await self._users.remove_totp(caller_of(call), email=query.email, otp=query.otp or "", address=call.address)
        return {}

    @route("GET", "/auth/sign-ins", query=SignInsQuery, problems=(NotFound,))
    async def sign_ins(self, call: Call[Nothing, SignInsQuery]) -> SignIns:
        """Lists the latest sign-ins of a user whom the caller may see, including attempts that failed."""
        query = call.query
        user = await self._identity.user(caller_of(call), email=query.email)
        page = await self._sign_in.history(user, limit=query.limit, offset=query.offset)
        items: list[SignIn] = [
            {"at": item.at.isoformat(), "address": item.address, "method": item.method, "outcome": item.outcome}
            for item in page.items
        ]
        return {"items": items, "total_count": page.total_count}

    @route("POST", "/auth/proof", body=ProofBody, audited=True, max_body=4_096, problems=(AuthenticationFailed,))
    async def prove(self, call: Call[ProofBody]) -> ProofReply:
        """Returns a proof of the caller's identity, which the operations in `accounts.proof.operations` require.

        Other operations require no proof. A call that lacks the proof is refused as `proof-required`, before anything
        is done.
        """
        body = call.body
        proof = await self._proofs.prove(caller_of(call), password=body.password, otp=body.otp, address=call.address)
        return {"proof": proof.token, "expires_at": proof.expires_at.isoformat()}

    @route("POST", "/auth/keypair/rotate", problems=(NotFound,))
    async def rotate(self, call: Call) -> RotatedKeypair:
        """Gives the keypair that signs this request a new secret, and returns it; the old one is refused."""
        caller = caller_of(call)
        keypair = await self._users.rotate_keypair(caller, caller.access_key)
        return {"access_key": keypair.access_key, "secret_key": keypair.secret_key}

    async def _own_user(self, call: Call[Any, Any]) -> User:
        return await self._identity.user(caller_of(call))
