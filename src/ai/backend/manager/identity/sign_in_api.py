"""Unsigned REST routes under ``/auth``: signing in and up (spec 03-08, client wire contract 2.9 and 2.10)."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from ai.backend.common.errors import AuthenticationFailed, Conflict, Forbidden, NotFound, NotSupported
from ai.backend.infra.http.fields import Name
from ai.backend.infra.http.routes import Call, Schema, route
from ai.backend.manager.identity.model import NewKeypair, User
from ai.backend.manager.identity.passwords import MAX_PASSWORD_LENGTH, PasswordService
from ai.backend.manager.identity.sign_in import SignInService
from ai.backend.manager.identity.sign_up import SignUpService
from ai.backend.manager.identity.totp_registration import TotpRegistration

Password = Annotated[str, Meta(max_length=MAX_PASSWORD_LENGTH)]
LoginName = Annotated[str, Meta(max_length=256)]
OneTimePassword = Annotated[str, Meta(max_length=64)]
"""A one-time password, or a recovery code."""
_MAX_BODY_BYTES = 65_536


class AuthorizeBody(Schema, frozen=True):
    """A sign-in by password; ``username`` is an e-mail address, or the name that a directory of the site knows."""

    username: LoginName
    password: Password
    domain: LoginName | None = None
    otp: OneTimePassword | None = None
    type: Literal["keypair"] = "keypair"


class AuthorizeTokenBody(Schema, frozen=True):
    """A sign-in by a token that another site of the organisation gave to the browser."""

    token: Annotated[str, Meta(min_length=1, max_length=8_192)]
    domain: LoginName | None = None


class UpdatePasswordUnsignedBody(Schema, frozen=True):
    username: LoginName
    current_password: Password
    new_password: Password
    domain: LoginName | None = None
    otp: OneTimePassword | None = None


class SignUpBody(Schema, frozen=True):
    email: LoginName
    password: Password
    username: LoginName = ""
    full_name: LoginName = ""
    domain: LoginName = ""


class VerifyEmailBody(Schema, frozen=True):
    """The token that was sent to the e-mail address of a new account, and the password given at its sign-up."""

    token: Annotated[str, Meta(max_length=4_096)]
    password: Password


class BeginRedirectBody(Schema, frozen=True):
    """The provider with which a browser signs in, and the URL to which the browser then comes back.

    The provider and the plugin must know ``return_url``.
    """

    provider: Name
    return_url: Annotated[str, Meta(max_length=2_048)]


class FinishRedirectBody(Schema, frozen=True):
    """The provider, the ticket and the URL parameters with which a browser came back from a sign-in.

    ``parameters`` is the query of the URL at which the browser came back.
    """

    provider: Name
    ticket: Annotated[str, Meta(max_length=16_384)]
    parameters: dict[str, Annotated[str, Meta(max_length=8_192)]]
    domain: LoginName | None = None


class RegistrationBody(Schema, frozen=True):
    """The token of a refused sign-in, with which a user registers one-time passwords during the sign-in.

    It is ``data.two_factor_registration_token`` of the refusal.
    """

    registration_token: Annotated[str, Meta(max_length=4_096)]


class ConfirmRegistrationBody(RegistrationBody, frozen=True):
    otp: OneTimePassword


class RegisteredDevice(TypedDict):
    """A new key for an authenticator app; ``totp_uri`` is the URI that such apps read as a QR code."""

    totp_key: str
    totp_uri: str


class RegistrationCodes(TypedDict):
    """New recovery codes; each can be used once, and they are shown only in this reply."""

    recovery_codes: list[str]


class SignedIn(TypedDict):
    response_type: Literal["success"]
    access_key: str
    secret_key: str
    role: str
    status: str
    email: str


class AuthorizeReply(TypedDict):
    data: SignedIn


class PasswordReply(TypedDict):
    error_msg: None


class SignedUp(TypedDict):
    status: str


class Providers(TypedDict):
    providers: list[str]


class RedirectReply(TypedDict):
    url: str
    ticket: str


_SIGN_IN_PROBLEMS = (AuthenticationFailed, Forbidden)


class SignInApi:
    """Routes of signing in and up."""

    def __init__(
        self,
        sign_in: SignInService,
        sign_up: SignUpService,
        passwords: PasswordService,
        registration: TotpRegistration,
    ) -> None:
        self._sign_in = sign_in
        self._sign_up = sign_up
        self._passwords = passwords
        self._registration = registration

    @route("POST", "/auth/authorize", body=AuthorizeBody, auth=False, audited=True, problems=_SIGN_IN_PROBLEMS)
    async def authorize(self, call: Call[AuthorizeBody]) -> AuthorizeReply:
        """Returns the main keypair of a user for an e-mail address and a password.

        A user who has one-time passwords gives one, or a recovery code, as ``otp``.
        """
        body = call.body
        user, keypair = await self._sign_in.sign_in(
            body.username,
            body.password,
            address=call.address,
            domain_name=body.domain or None,
            otp=body.otp or "",
        )
        return _authorize_reply(user, keypair)

    @route(
        "POST",
        "/auth/authorize-token",
        body=AuthorizeTokenBody,
        auth=False,
        audited=True,
        max_body=_MAX_BODY_BYTES,
        problems=_SIGN_IN_PROBLEMS,
    )
    async def authorize_token(self, call: Call[AuthorizeTokenBody]) -> AuthorizeReply:
        """Returns the main keypair of the user whom a token of another site names, once for each token. A hook plugin
        judges tokens; without one, none is taken."""
        body = call.body
        user, keypair = await self._sign_in.sign_in_token(
            body.token, address=call.address, domain_name=body.domain or None
        )
        return _authorize_reply(user, keypair)

    @route(
        "POST",
        "/auth/update-password-no-auth",
        body=UpdatePasswordUnsignedBody,
        auth=False,
        audited=True,
        problems=_SIGN_IN_PROBLEMS,
    )
    async def update_password_unsigned(self, call: Call[UpdatePasswordUnsignedBody]) -> PasswordReply:
        """Changes a password that has expired, or must be changed before its user signs in."""
        body = call.body
        await self._passwords.change_required(
            body.username, body.current_password, body.new_password, address=call.address, otp=body.otp or ""
        )
        return {"error_msg": None}

    @route(
        "POST",
        "/auth/signup",
        body=SignUpBody,
        auth=False,
        audited=True,
        max_body=_MAX_BODY_BYTES,
        problems=(Forbidden, NotFound, NotSupported),
    )
    async def sign_up(self, call: Call[SignUpBody]) -> SignedUp:
        """Makes a new account, which stays inactive until its user brings the token that is sent to the e-mail address.

        The answer is the same for an address that has an account.
        """
        body = call.body
        await self._sign_up.sign_up(
            body.email,
            body.password,
            username=body.username,
            full_name=body.full_name,
            domain_name=body.domain,
            address=call.address,
        )
        return {"status": "before-verification"}

    @route("POST", "/auth/verify-email", body=VerifyEmailBody, auth=False, audited=True, problems=_SIGN_IN_PROBLEMS)
    async def verify_email(self, call: Call[VerifyEmailBody]) -> SignedUp:
        """Activates a new account by the token that was sent to its e-mail address."""
        user = await self._sign_up.verify(call.body.token, call.body.password, address=call.address)
        return {"status": user.status.value}

    @route(
        "POST", "/totp/anon", body=RegistrationBody, auth=False, audited=True, problems=(*_SIGN_IN_PROBLEMS, Conflict)
    )
    async def begin_totp(self, call: Call[RegistrationBody]) -> RegisteredDevice:
        """Makes a key for an authenticator app, by the token of a sign-in that demands one."""
        device = await self._registration.begin(call.body.registration_token, address=call.address)
        return {"totp_key": device.key, "totp_uri": device.uri}

    @route(
        "POST",
        "/totp/anon/verify",
        body=ConfirmRegistrationBody,
        auth=False,
        audited=True,
        problems=(*_SIGN_IN_PROBLEMS, NotFound),
    )
    async def confirm_totp(self, call: Call[ConfirmRegistrationBody]) -> RegistrationCodes:
        """Confirms the key of the authenticator app by a one-time password; the sign-in then takes the next one."""
        body = call.body
        codes = await self._registration.confirm(body.registration_token, body.otp, address=call.address)
        return {"recovery_codes": list(codes)}

    @route("GET", "/auth/providers", auth=False)
    async def providers(self, call: Call) -> Providers:
        """Names the services where browsers may sign in."""
        return {"providers": list(self._sign_in.providers())}

    @route("POST", "/auth/redirect", body=BeginRedirectBody, auth=False, problems=(Forbidden, NotFound))
    async def begin_redirect(self, call: Call[BeginRedirectBody]) -> RedirectReply:
        """Returns the URL at which a browser signs in with a provider, and a ticket for the way back.

        Only the same browser may bring the ticket back.
        """
        redirect = await self._sign_in.begin_redirect(call.body.provider, call.body.return_url)
        return {"url": redirect.url, "ticket": redirect.ticket}

    @route(
        "POST",
        "/auth/redirect/finish",
        body=FinishRedirectBody,
        auth=False,
        audited=True,
        problems=(*_SIGN_IN_PROBLEMS, NotFound, Conflict),
    )
    async def finish_redirect(self, call: Call[FinishRedirectBody]) -> AuthorizeReply:
        """Returns the main keypair of a user whom a provider has signed in and whose browser was redirected back."""
        body = call.body
        user, keypair = await self._sign_in.finish_redirect(
            body.provider, body.ticket, body.parameters, address=call.address, domain_name=body.domain or None
        )
        return _authorize_reply(user, keypair)


def _authorize_reply(user: User, keypair: NewKeypair) -> AuthorizeReply:
    return {
        "data": {
            "response_type": "success",
            "access_key": keypair.access_key,
            "secret_key": keypair.secret_key,
            "role": user.role.value,
            "status": user.status.value,
            "email": user.email,
        }
    }
