"""Builds the manager of the embedded cluster."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping

from pydantic import SecretStr

from ai.backend.common.errors import Unavailable
from ai.backend.infra.bus import Bus
from ai.backend.infra.config_store import SQLiteConfigStore
from ai.backend.infra.database import Database
from ai.backend.infra.http.server import make_runner, serve_on
from ai.backend.infra.rpc.endpoints import ManagerEndpoint
from ai.backend.manager.composition.app import build_app
from ai.backend.manager.composition.backing_services import BALLAST_BYTES, sealer_of
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.identity.passwords import verify_password
from ai.backend.standalone.instance import ClusterFile, Keys, read_env_file, write_env_file
from ai.backend.standalone.layout import Layout
from ai.backend.standalone.manager_file import manager_settings
from ai.backend.standalone.passwords import forget_password, hash_of_random, make_password, stored_password
from ai.backend.standalone.storage_daemon import FOLDER_HOST, secret, shared_configuration

log = logging.getLogger(__name__)
_DEFAULT_USERS = {"admin@local": "administrator", "user@local": "user"}


class ManagerDaemon:
    """Runs the manager and its HTTP server on the embedded database. ``start`` returns once requests are served."""

    def __init__(self, layout: Layout, endpoint: ManagerEndpoint, sock: socket.socket, *, cluster: ClusterFile) -> None:
        self._layout = layout
        self._endpoint = endpoint
        self._sock = sock
        self._cluster = cluster
        self.database = Database(f"sqlite:///{layout.database}", ballast_bytes=BALLAST_BYTES)
        self.bus = Bus()
        settings = _with_monitoring(manager_settings(cluster.manager_config, layout.database.parent), layout)
        self.manager = Manager(settings, self.database, self.bus, endpoint, sealer=sealer_of(settings))
        self._runner = make_runner(build_app(self.manager, readiness=self._readiness))

    async def migrate(self) -> None:
        """Upgrades the database; does nothing if it is up to date."""
        await self.manager.migrate()

    async def start(self) -> None:
        await self.migrate()
        await self._register_storage()
        await self._bootstrap()
        await self._register_app_proxy()
        await self.manager.start()
        await self._endpoint.start(self.manager.reports)
        await serve_on(self._runner, self._sock)

    async def _register_storage(self) -> None:
        entries = shared_configuration(self._layout, self._cluster)
        if not entries:
            return
        store = SQLiteConfigStore(self.database)
        await store.setup()
        await store.put_many(entries)
        if await store.get("volumes/default_host") is None:
            await store.put_many({"volumes/default_host": FOLDER_HOST})

    async def _register_app_proxy(self) -> None:
        """Sets the cluster's app proxy in the resource groups that have none, and its address where it is set already.

        Resource groups with another app proxy stay as they are.
        """
        if not self._cluster.coordinator_port:
            return
        groups, own_secret = self.manager.stores.resource_groups, secret(self._layout, "app-proxy")
        for group in await groups.resource_groups():
            if group.wsproxy_api_token in (None, own_secret):
                values = {"wsproxy_addr": self._cluster.coordinator_url, "wsproxy_api_token": own_secret}
                await groups.change_resource_group(group.name, **values)

    async def _bootstrap(self) -> None:
        """Creates the default users, and writes the env files with the keypairs of the administrator and the user."""
        bootstrap = self.manager.bootstrap
        await bootstrap.run(vfolder_hosts=[FOLDER_HOST] if self._cluster.storage_port else [])
        env_files = {"admin@local": self._layout.admin_env, "user@local": self._layout.user_env}
        for email, path in env_files.items():
            stored_keypair = await bootstrap.main_keypair(email)
            if stored_keypair is None:
                log.warning("%s has no active keypair any more; %s is left as it is", email, path)
                continue
            keys = Keys(access_key=stored_keypair.access_key, secret_key=stored_keypair.secret_key)
            write_env_file(path, endpoint=self._cluster.endpoint, keys=keys, role=_DEFAULT_USERS[email])
            await self._set_password(email)

    async def _set_password(self, email: str) -> None:
        """Sets the password that ``up`` prints for a user who has no password.

        If the user has chosen another password, deletes the stored one.
        """
        stored_hash = await self.manager.bootstrap.identities.password_hash(email)
        if stored_hash is None:
            await self.manager.bootstrap.set_password_hash(email, hash_of_random(make_password(self._layout, email)))
        elif (printed_password := stored_password(self._layout, email)) and not verify_password(
            stored_hash, printed_password
        ):
            forget_password(self._layout, email)

    async def _readiness(self) -> Mapping[str, bool]:
        # The devices of an agent that is only connected are not known yet.
        return {"agents": bool(self._endpoint.agents.keys() & set(self.manager.registry.registered))}

    async def stop(self) -> None:
        """Stops serving and the loops. Sessions continue. Safe after a failed start."""
        await self._runner.cleanup()
        await self._endpoint.stop()
        await self.manager.stop()
        await self.database.close()
        self._sock.close()


def _with_monitoring(settings: ManagerSettings, layout: Layout) -> ManagerSettings:
    """Adds the token with which Prometheus reads its list of targets to the manager's settings.

    Changes nothing if the manager's file sets a token.
    """
    if settings.metrics.targets_token is not None:
        return settings
    metrics = settings.metrics.model_copy(update={"targets_token": SecretStr(secret(layout, "monitoring"))})
    return settings.model_copy(update={"metrics": metrics})


def keys_of(layout: Layout) -> tuple[Keys, Keys]:
    """Returns the keypairs of the user and of the administrator.

    Raises Unavailable if the env files do not exist yet.
    """
    user_keys, admin_keys = read_env_file(layout.user_env), read_env_file(layout.admin_env)
    if user_keys is None or admin_keys is None:
        raise Unavailable(f"The cluster wrote no keys to {layout.root}.")
    return user_keys, admin_keys
