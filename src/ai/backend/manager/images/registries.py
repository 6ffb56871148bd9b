"""Which container registries there are: keys of the shared configuration (spec 03-02, 03-06).

``config/docker/registry/NAME`` is the URL of a registry's API; below it are ``type``, ``project``, ``username``,
``password`` and ``ssl_verify``. A NAME is quoted as in URLs where it has a colon. ``config/docker/image/auto_pull``
says when agents fetch images.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, unquote, urlsplit

from ai.backend.common.errors import Conflict, Forbidden, InvalidInput, NotFound
from ai.backend.common.images import check_registry_name
from ai.backend.infra.config_store import ConfigStore
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.images.model import AutoPull, ContainerRegistry, ContainerRegistryType

PREFIX = "config/docker/registry"
AUTO_PULL = "config/docker/image/auto_pull"
_MAX_TEXT = 4096


def require_superadmin(caller: Caller, what: str) -> None:
    """Raises Forbidden for anybody else."""
    if not caller.is_superadmin:
        raise Forbidden(f"Only superadmins {what}.")


def _key(name: str) -> str:
    return f"{PREFIX}/{quote(name, safe='')}"


def _is_true(text: str) -> bool:
    return text.strip().lower() not in ("false", "0", "no", "off")


def check_registry(registry: ContainerRegistry) -> ContainerRegistry:
    """Return it. Raises InvalidInput: a name or URL that is none, or unprintable words."""
    check_registry_name(registry.name)
    try:
        url = urlsplit(registry.url)
        fits = url.scheme in ("http", "https") and bool(url.hostname) and not url.username and not url.query
    except ValueError:
        fits = False
    words = (registry.url, registry.username, registry.password, *registry.projects)
    if not fits or not all(word.isprintable() and len(word) <= _MAX_TEXT for word in words):
        raise InvalidInput(
            "A registry has a URL such as https://cr.example.org, and names without control characters.",
            data={"url": "malformed"},
        )
    return registry


class ContainerRegistries:
    """Reads and writes them."""

    def __init__(self, config: ConfigStore) -> None:
        self._config = config

    async def all(self) -> Mapping[str, ContainerRegistry]:
        """By name. What cannot be read as a registry is left out."""
        grouped: dict[str, dict[str, str]] = {}
        for path, value in (await self._config.get_prefix(PREFIX)).items():
            name, _, field = path.removeprefix(PREFIX).lstrip("/").partition("/")
            if name:
                grouped.setdefault(unquote(name), {})[field] = value
        return {name: found for name in sorted(grouped) if (found := self._read(name, grouped[name])) is not None}

    @staticmethod
    def _read(name: str, values: Mapping[str, str]) -> ContainerRegistry | None:
        kind = values.get("type", "").strip().lower()
        is_harbor = kind in ("harbor", "harbor2")
        try:
            return check_registry(
                ContainerRegistry(
                    name=name,
                    url=values.get("", "").strip(),
                    type=ContainerRegistryType.HARBOR2 if is_harbor else ContainerRegistryType.DOCKER,
                    projects=tuple(p.strip() for p in values.get("project", "").split(",") if p.strip()),
                    username=values.get("username", ""),
                    password=values.get("password", ""),
                    ssl_verify=_is_true(values.get("ssl_verify", values.get("ssl-verify", "true"))),
                )
            )
        except InvalidInput:
            return None

    async def get(self, name: str) -> ContainerRegistry:
        """Raises NotFound."""
        found = (await self.all()).get(name)
        if found is None:
            raise NotFound(f"There is no registry {name[:128]!r} in the configuration.", data={"registry": "unknown"})
        return found

    async def add(self, caller: Caller, registry: ContainerRegistry) -> ContainerRegistry:
        """Raises Forbidden, InvalidInput, Conflict: there is one of that name."""
        require_superadmin(caller, "configure registries")
        check_registry(registry)
        if registry.name in await self.all():
            raise Conflict(f"There is a registry {registry.name!r} already.", data={"hostname": "taken"})
        await self._write(registry)
        return registry

    async def change(self, caller: Caller, registry: ContainerRegistry) -> ContainerRegistry:
        """Raises Forbidden, InvalidInput, NotFound."""
        require_superadmin(caller, "configure registries")
        await self.get(registry.name)
        await self._write(check_registry(registry))
        return registry

    async def remove(self, caller: Caller, name: str) -> ContainerRegistry:
        """Raises Forbidden, NotFound. Images that are known of it stay until they are cleared."""
        require_superadmin(caller, "configure registries")
        found = await self.get(name)
        for key in {_key(name), f"{PREFIX}/{name}"}:
            await self._config.delete(key, prefix=True)
        return found

    async def _write(self, registry: ContainerRegistry) -> None:
        key = _key(registry.name)
        await self._config.put_many(
            {
                key: registry.url,
                f"{key}/type": registry.type.value,
                f"{key}/project": ",".join(registry.projects),
                f"{key}/username": registry.username,
                f"{key}/password": registry.password,
                f"{key}/ssl_verify": "true" if registry.ssl_verify else "false",
            }
        )

    async def auto_pull(self) -> AutoPull:
        """When agents fetch images; by digest where nothing usable is configured."""
        text = (await self._config.get(AUTO_PULL) or "").strip().lower()
        return AutoPull(text) if text in set(AutoPull) else AutoPull.DIGEST
