"""Lets people create their own accounts if a hook plugin admits them (spec 03-02:1429, peer facts 4.2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from ai.backend.common.errors import Conflict, Forbidden, InvalidInput, NotSupported, Unavailable
from ai.backend.common.ids import DomainName
from ai.backend.common.states import UserRole, UserStatus
from ai.backend.infra.clock import Clock
from ai.backend.manager.hooks import Hooks
from ai.backend.manager.identity.model import User
from ai.backend.manager.identity.password_tokens import PasswordTokens, is_password_of, user_id_of
from ai.backend.manager.identity.passwords import PasswordService, check_address
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.identity.settings import SignUpSettings
from ai.backend.manager.identity.site_users import DEFAULT_DOMAIN
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.identity.users import EMAIL_PATTERN, unused_username
from ai.backend.manager.secrets.sealer import Sealer
from ai.backend.plugin.hooks import Account, SignUpRequest


@dataclass(eq=False, slots=True)
class SignUpService:
    """Creates accounts, which stay inactive until their e-mail address is verified.

    The answer is the same whether the address has an account or not. To verify takes the token, which goes to the
    address, and the password of the same sign-up: whoever signs up with the address of another has only one of them.
    """

    _store: IdentityStore
    _identity: IdentityService
    _passwords: PasswordService
    _hooks: Hooks
    _sealer: Sealer
    _settings: SignUpSettings
    _clock: Clock
    tokens: PasswordTokens = field(init=False)

    def __post_init__(self) -> None:
        token_life = timedelta(hours=self._settings.token_hours)
        self.tokens = PasswordTokens(
            self._sealer, self._clock, b"sign-up", "backendai-sign-up", token_life, "sign up again"
        )

    async def sign_up(
        self, email: str, password: str, *, username: str, full_name: str, domain_name: str, address: str
    ) -> None:
        """Creates an account, or renews an account that waits for verification, and has its token delivered.

        Raises:
            NotSupported: nobody signs up here. Forbidden: a plugin refuses, or none admits.
            InvalidInput: no e-mail address, or a password against the policy. Unavailable: no plugin delivers tokens.
        """
        if self._settings.mode == "closed":
            raise NotSupported("Nobody signs up here by themselves: ask an administrator.")
        if not EMAIL_PATTERN.fullmatch(email):
            raise InvalidInput("That is no e-mail address.", data={"email": "malformed"})
        domain_name = domain_name or DEFAULT_DOMAIN
        request = SignUpRequest(
            email=email, username=username, full_name=full_name, domain_name=domain_name, address=address
        )
        if not await self._hooks.admit_sign_up(request):
            raise Forbidden("You may not sign up here by yourself: ask an administrator.")
        await self._identity.check_domain(domain_name)
        account = Account(email=email, username=username, domain_name=domain_name, role=UserRole.USER.value)
        await self._hooks.check_password(account, password)
        password_hash = await self._passwords.check_and_hash(password)
        token = await self._store_pending_account(request, password_hash)
        if not await self._hooks.deliver_verification(request, token):
            raise Unavailable("Nobody delivers tokens for new accounts here: tell an administrator.")

    async def verify(self, token: str, password: str, *, address: str) -> User:
        """Activates the account for which a token was made, and returns its user. Raises AuthenticationFailed,
        RateLimitExceeded.
        """
        claims = self.tokens.claims_of(token)
        user = await self._store.user(uuid=user_id_of(claims))
        if user is None or user.status is not UserStatus.BEFORE_VERIFICATION:
            raise self.tokens.token_error()
        check_address(user, address)
        stored_hash = await self._store.password_hash(user.email)
        if stored_hash is None or not is_password_of(claims, stored_hash):
            raise self.tokens.token_error()
        await self._passwords.require_password(user.email, stored_hash, password)
        now = self._clock.now()
        activated_user = await self._store.change_user(
            user.uuid, status=UserStatus.ACTIVE, status_info="verified", modified_at=now
        )
        if activated_user is None:
            raise self.tokens.token_error()
        self._identity.invalidate(user.main_access_key or "")
        return activated_user

    async def _store_pending_account(self, request: SignUpRequest, password_hash: str) -> str:
        """Stores or renews an account that waits for verification, and returns the token for its verification.

        Returns an empty text if the e-mail address has an account that does not wait for verification, or gets one by
        another request at the same moment.
        """
        user = await self._store.user(email=request.email)
        now = self._clock.now()
        if user is None:
            domain = DomainName(request.domain_name)
            groups = [group.id for group in await self._store.groups(domain_name=domain, name="default")]
            username_source = request.username or request.email
            username = await unused_username(self._store, username_source, self._identity.new_suffix)
            try:
                user, _ = await self._identity.make_user(
                    request.email,
                    username,
                    UserRole.USER,
                    domain,
                    groups,
                    password_hash=password_hash,
                    full_name=request.full_name or username,
                    status=UserStatus.BEFORE_VERIFICATION,
                    password_changed_at=now,
                )
            except Conflict:  # the same person at the same moment
                return ""
        elif user.status is UserStatus.BEFORE_VERIFICATION:
            await self._store.change_user(
                user.uuid, password_hash=password_hash, password_changed_at=now, modified_at=now
            )
        else:
            return ""
        return self.tokens.make(user, password_hash)
