"""Builds the web server from its parts."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Mapping

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.clock import SystemClock
from ai.backend.infra.database import Database
from ai.backend.infra.http.health import HealthApi
from ai.backend.infra.http.routes import endpoints_of
from ai.backend.infra.http.server import HttpOptions, HttpServer, make_runner, serve_on, tls_of
from ai.backend.infra.telemetry import Metrics
from ai.backend.web.config.settings import SessionSettings, WebSettings
from ai.backend.web.cookies import CookiePolicy
from ai.backend.web.guard import guard_handlers
from ai.backend.web.login.api import LoginApi
from ai.backend.web.login.passwords_api import PasswordApi
from ai.backend.web.login.proofs_api import ProofApi
from ai.backend.web.login.service import LoginLimits, LoginService
from ai.backend.web.login.sql import SqlLoginStore
from ai.backend.web.login.sso_api import SsoApi
from ai.backend.web.login.store import LoginStore
from ai.backend.web.login.tokens_api import TokenLoginApi
from ai.backend.web.managers.pool import ManagerPool
from ai.backend.web.managers.sign_in import ManagerSignIn
from ai.backend.web.pages.api import PagesApi
from ai.backend.web.pages.bundle import is_our_console
from ai.backend.web.pages.console import Console
from ai.backend.web.pages.console_api import ConsoleApi
from ai.backend.web.relay.api import RelayApi
from ai.backend.web.relay.services_api import ServiceCallsApi

log = logging.getLogger(__name__)


class WebServer:
    """Runs a web server for browsers and for clients in session mode.

    Raises InvalidInput: a certificate cannot be used.
    """

    def __init__(self, settings: WebSettings) -> None:
        self.settings = settings
        service, session = settings.service, settings.session
        metrics = Metrics("web")
        self._tls = _tls_context(settings, metrics)
        scheme = service.force_endpoint_protocol or ("https" if self._tls is not None else "http")
        self.managers = ManagerPool(
            settings.api.endpoint,
            verifies_tls=settings.api.ssl_verify,
            connect_timeout_s=settings.api.connect_timeout,
        )
        self._store = login_store_of(session)
        limits = LoginLimits(
            max_age_s=session.max_age,
            block_s=session.login_block_time,
            name_failures=session.login_allowed_fail_count,
            address_failures=session.address_allowed_fail_count,
            idle_s=session.idle_timeout,
        )
        sign_in = ManagerSignIn(self.managers)
        self.logins = logins = LoginService(self._store, sign_in, limits, SystemClock())
        cookies = CookiePolicy(scheme=scheme, base_name=session.cookie_name, max_age_s=session.max_age)
        self._service_calls = ServiceCallsApi(self.managers, logins, cookies, verifies_tls=settings.api.ssl_verify)
        apis = (
            LoginApi(logins, sign_in, cookies, domain=settings.api.domain),
            SsoApi(logins, sign_in, cookies, domain=settings.api.domain),
            PasswordApi(logins, domain=settings.api.domain, scheme=scheme),
            TokenLoginApi(logins, cookies, domain=settings.api.domain, token_name=settings.api.auth_token_name),
            ProofApi(logins, sign_in, cookies),
            RelayApi(self.managers, logins, cookies),
            self._service_calls,
            HealthApi(metrics, self._readiness),
            _page_routes(settings, scheme=scheme),
        )
        server = HttpServer(
            [endpoint for api in apis for endpoint in endpoints_of(api)],
            metrics=metrics,
            options=HttpOptions(trusted_proxies=frozenset(service.trusted_proxies), has_versions=False),
            active_keys=logins.active_ids,
        )
        app = server.application()
        check_middleware, add_headers = guard_handlers(scheme, hsts_subdomains=settings.security.hsts_subdomains)
        app.middlewares.insert(0, check_middleware)
        app.on_response_prepare.append(add_headers)
        self._runner = make_runner(app, decodes_bodies=False)

    async def start(self, listener: socket.socket | None = None) -> None:
        """Serves on ``listener``, or on the address of the settings.

        Raises InvalidInput if the address is taken, Unavailable if the store of logins is away.
        """
        await self._store.start()
        if self.settings.session.flush_on_startup:
            await self._store.delete_all()
        await self.managers.start()
        service = self.settings.service
        try:
            host, port = await serve_on(self._runner, listener or (service.ip, service.port), tls=self._tls)
        except OSError as e:
            raise InvalidInput(f"Cannot listen on {service.ip}:{service.port}: {e.strerror}.") from None
        shown_host = f"[{host}]" if ":" in host else host
        self.url = f"http{'s' if self._tls is not None else ''}://{shown_host}:{port}"

    async def stop(self) -> None:
        """Stops serving. May be called after a failed start."""
        await self._runner.cleanup()
        await self._service_calls.close()
        await self.managers.stop()
        await self._store.stop()

    async def _readiness(self) -> Mapping[str, bool]:
        return {"manager": await self.managers.is_reachable()}


def _page_routes(settings: WebSettings, *, scheme: str) -> ConsoleApi | PagesApi:
    """Returns the routes of the console's pages, or of a published console that ``service.static-path`` names."""
    console_folder = settings.service.static_path
    console_folder = console_folder.expanduser().resolve() if console_folder is not None else None
    if console_folder is not None and not is_our_console(console_folder):
        return PagesApi(settings, scheme=scheme)
    return ConsoleApi(settings, Console(console_folder), scheme=scheme)


def _tls_context(settings: WebSettings, metrics: Metrics) -> ssl.SSLContext | None:
    service = settings.service
    if not service.ssl_enabled or service.ssl_cert is None or service.ssl_privkey is None:
        return None
    return tls_of(service.ssl_cert, service.ssl_privkey, metrics=metrics)


def login_store_of(session: SessionSettings) -> LoginStore:
    """Returns the login store that the settings name. Creates the folder of its file if necessary."""
    redis = session.redis
    if redis.url is None:
        database_path = session.file.expanduser()
        database_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return SqlLoginStore(Database(f"sqlite:///{database_path}"))
    # Both need the extra "redis"; the first says so.
    from ai.backend.infra.redis import connect
    from ai.backend.web.login.redis_client import RedisLoginStore

    return RedisLoginStore(connect(redis.url))
