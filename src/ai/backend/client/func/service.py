"""Model services: endpoints whose replicas are sessions of type inference (spec 03-12, "Working with model service").

service = api.Service.create("python", "my-model", 1, service_name="my-service", resources={"cpu": 1, "mem": "1g"})
print(service.info()["url"], service.generate_api_token("1d")["token"])
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack
from uuid import UUID

from ai.backend.client.func.admin import PaginatedResult, Paging
from ai.backend.client.func.base import Area
from ai.backend.client.transport import Transport
from ai.backend.client.wire import encode_segment

SERVICE_FIELDS = (
    "endpoint_id", "name", "status", "image", "domain", "project", "resource_group", "resource_slots", "url", "model",
    "model_mount_destination", "created_user", "session_owner", "tag", "startup_command", "bootstrap_script",
    "callback_url", "environ", "resource_opts", "claim", "variant_requirements", "device_requests",
    "desired_session_count", "cluster_mode", "cluster_size", "open_to_public", "created_at",
    "routings { routing_id session status traffic_ratio }",
)  # fmt: skip
"""The fields of an endpoint that :meth:`AsyncService.info` returns."""
LIST_FIELDS = (
    "endpoint_id",
    "name",
    "status",
    "image",
    "desired_session_count",
    "ready_count",
    "url",
    "open_to_public",
)


class ServiceOptions(TypedDict, total=False):
    """Optional parameters of a new model service, such as its name, resources, and roll-out policy.

    ``policy`` says how later revisions are rolled out; ``claim`` is the name of a device claim, whose devices its
    replicas get in place of accelerators among its ``resources``. ``variant_requirements`` and ``device_requests`` say
    what the devices of each replica must be, as in :class:`ai.backend.client.func.creation.CreateOptions`.
    """

    service_name: str | None
    model_version: str | int | None
    model_definition_path: str | None
    model_name: str | None
    model_mount_destination: str
    runtime_variant: str
    envs: Mapping[str, str] | None
    startup_command: str | None
    port: int | None
    resources: Mapping[str, str | int | float] | None
    resource_opts: Mapping[str, str | int | bool] | None
    claim: str | None
    variant_requirements: Sequence[str] | None
    device_requests: Sequence[str] | None
    cluster_size: int
    cluster_mode: str
    domain_name: str | None
    group_name: str | None
    bootstrap_script: str | None
    tag: str | None
    architecture: str | None
    scaling_group: str | None
    owner_access_key: str | None
    open_to_public: bool
    expose_to_public: bool
    policy: Mapping[str, Any] | None


class AsyncService(Area):
    """Manages one model service, given by its id or by the name of one of your own services.

    Constructing it sends no request.
    """

    def __init__(self, transport: Transport, name: UUID | str) -> None:
        super().__init__(transport)
        self.name = str(name)

    async def endpoint_id(self) -> UUID:
        """Returns the id of the endpoint. Raises BackendAPIError if there is none."""
        return UUID(str((await self.describe())["endpoint_id"]))

    async def describe(self) -> dict[str, Any]:
        """Returns the endpoint with its revisions and live replicas (``GET /services/{id}``)."""
        return await self._get(self._path())

    async def info(self, fields: Sequence[str] = ()) -> dict[str, Any]:
        """Returns the endpoint's fields of GraphQL; ``url`` is None before a replica was ready."""
        endpoint_id = str(await self.endpoint_id())
        selected_fields = fields or SERVICE_FIELDS
        return dict(await self._admin.select("endpoint", selected_fields, endpoint_id=("UUID!", endpoint_id)))

    async def scale(self, to: int) -> dict[str, Any]:
        """Changes the desired number of replicas; returns before they are running."""
        return await self._change("POST", self._path("/scale"), {"to": to})

    async def modify(self, *, clear: Sequence[str] = (), **changes: Any) -> dict[str, Any]:
        """Changes fields of the endpoint, rolls out a new revision if a replica would differ, and returns the endpoint.

        Another ``image``, ``model``, ``environ``, ``startup_command`` or the like makes a new revision.

        ``clear`` names fields that get the value which they have in a creation without them; None leaves a field.
        """
        changed_fields = {name: value for name, value in changes.items() if value is not None}
        return await self._change("PATCH", self._path(), changed_fields | dict.fromkeys(clear))

    async def rollback(self) -> dict[str, Any]:
        """Rolls back the revision that is being rolled out."""
        return await self._change("POST", self._path("/rollback"))

    async def promote(self) -> dict[str, Any]:
        """Ends the present step of a canary, or the watch of a blue-green roll-out."""
        return await self._change("POST", self._path("/promote"))

    async def delete(self) -> dict[str, Any]:
        """Ends the service with all its replicas; returns before they have ended."""
        return await self._change("DELETE", self._path())

    async def sync(self) -> dict[str, Any]:
        """Asks the server to send the routes to the app proxy again."""
        return await self._change("POST", self._path("/sync"))

    async def generate_api_token(self, duration: str) -> dict[str, Any]:
        """Returns ``token``, by which the endpoint is called for a duration as ``3600s`` or ``1d``."""
        return await self._change("POST", self._path("/token"), {"duration": duration})

    async def update_traffic_ratio(self, target_route_id: UUID | str, new_ratio: float) -> dict[str, Any]:
        """Changes the weight of a replica among those of its revision."""
        path = self._path(f"/routings/{encode_segment(str(target_route_id))}")
        return await self._change("PUT", path, {"traffic_ratio": new_ratio})

    async def downscale_single_route(self, target_route_id: UUID | str) -> dict[str, Any]:
        """Ends one replica, and lowers the desired number by one."""
        return await self._change("DELETE", self._path(f"/routings/{encode_segment(str(target_route_id))}"))

    async def history(self, *, limit: int = 100, offset: int = 0) -> list[dict[str, Any]]:
        """Returns the changes of the endpoint with their reasons, newest first."""
        return list((await self._get(self._path("/history"), limit=limit, offset=offset))["events"])

    async def usage(self, *, by: str = "day", since: int | None = None, until: int | None = None) -> dict[str, Any]:
        """Returns the token usage of this service in a period, by default the last 30 days.

        The period is in unix time. The keys are ``groups`` and ``total``, each with ``requests``, ``errors``,
        ``prompt_tokens``, ``cached_tokens``, ``output_tokens``, ``estimated_requests``, ``busy_s`` and
        ``tokens_per_s``. ``by``: token, user, project, revision, replica, hour or day.
        """
        return await self._get(self._path("/usage"), by=by, since=since, until=until)

    async def why(self) -> dict[str, Any]:
        """Returns an explanation of the endpoint's present state, with problems and reasons for each replica.

        The keys are ``explanation``, ``problem``, ``replicas``, ``obstacles``, ``autoscaling``.
        """
        return await self._get(self._path("/why"))

    async def scaling(self) -> dict[str, Any]:
        """Returns how the endpoint is scaled by its load: bounds, ``target``, ``rules``, ``last_decision``."""
        return await self._get(self._path("/scaling"))

    async def set_scaling(self, **changes: Any) -> dict[str, Any]:
        """Turns on the autoscaling of the service by its load, or changes its settings.

        The settings are ``min_replicas``, ``max_replicas``, ``target``, ``idle_s``, ``down_delay_s``; what is not given
        stays. Returns the same as :meth:`scaling`.
        """
        return await self._change("PATCH", self._path("/scaling"), changes)

    async def end_scaling(self) -> dict[str, Any]:
        """Ends autoscaling with all its rules; the present number of replicas stays."""
        return await self._change("DELETE", self._path("/scaling"))

    async def add_scaling_rule(self, **values: Any) -> dict[str, Any]:
        """Adds a rule: ``metric_name``, ``threshold``, ``comparator``, ``step_size``, ``cooldown_seconds``,
        ``min_replicas``, ``max_replicas``. Returns the rule with its ``id``."""
        return await self._change("POST", self._path("/scaling/rules"), values)

    async def modify_scaling_rule(self, rule_id: UUID | str, **changes: Any) -> dict[str, Any]:
        """Changes fields of a rule; returns the rule."""
        return await self._change("PATCH", self._path(f"/scaling/rules/{encode_segment(str(rule_id))}"), changes)

    async def remove_scaling_rule(self, rule_id: UUID | str) -> dict[str, Any]:
        """Removes a rule."""
        return await self._change("DELETE", self._path(f"/scaling/rules/{encode_segment(str(rule_id))}"))

    def _path(self, operation: str = "") -> str:
        return f"/services/{encode_segment(self.name)}{operation}"


class AsyncServices(Area):
    """Creates, tries and lists services (``api_session.Service``). Called with a name or id, returns a handle."""

    def __call__(self, name: UUID | str) -> AsyncService:
        return AsyncService(self._transport, name)

    async def create(
        self, image: str, model_id_or_name: str, initial_session_count: int = 1, **options: Unpack[ServiceOptions]
    ) -> AsyncService:
        """Creates a service of a model folder, or of an artifact as ``artifact:NAME``; returns before it is ready."""
        body = self._creation_body(image, model_id_or_name, initial_session_count, options)
        endpoint = await self._change("POST", "/services", body)
        return AsyncService(self._transport, str(endpoint["endpoint_id"]))

    async def try_start(self, image: str, model_id_or_name: str, **options: Unpack[ServiceOptions]) -> dict[str, Any]:
        """Starts one replica, probes it and ends it in a background task; returns its ``task_id``."""
        return await self._change("POST", "/services/_/try", self._creation_body(image, model_id_or_name, 1, options))

    async def list(self, *, name: str | None = None) -> Sequence[dict[str, Any]]:
        """Returns the endpoints that you see, newest first."""
        return [*(await self._get_reply("/services", name=name)).json()]

    async def usage(
        self, *, by: str = "endpoint", since: int | None = None, until: int | None = None
    ) -> dict[str, Any]:
        """Returns the token usage of all services that the caller sees, as :meth:`AsyncService.usage` does."""
        return await self._get("/services/_/usage", by=by, since=since, until=until)

    async def runtimes(self) -> Sequence[dict[str, Any]]:
        """Returns the runtime variants with ``name``, ``title``, ``command`` and ``health_path``."""
        return [*(await self._get("/services/_/runtimes"))["runtimes"]]

    async def paginated_list(self, fields: Sequence[str] = (), **paging: Unpack[Paging]) -> PaginatedResult:
        """Returns a page of the endpoints that you see."""
        return await self._admin.fetch_page("endpoint_list", fields or LIST_FIELDS, {}, **paging)

    def _creation_body(self, image: str, model: str, count: int, options: ServiceOptions) -> dict[str, Any]:
        config = self._transport.config
        is_public = options.get("open_to_public", options.get("expose_to_public", False))
        body: dict[str, Any] = {
            "name": options.get("service_name") or f"pysdk-{secrets.token_hex(6)}",
            "desired_session_count": count,
            "image": image,
            "arch": options.get("architecture"),
            "group": options.get("group_name") or config.group,
            "domain": options.get("domain_name") or config.domain,
            "cluster_size": options.get("cluster_size", 1),
            "cluster_mode": options.get("cluster_mode", "single-node"),
            "tag": options.get("tag"),
            "startup_command": options.get("startup_command"),
            "bootstrap_script": options.get("bootstrap_script"),
            "owner_access_key": options.get("owner_access_key"),
            "open_to_public": is_public,
            "config": {
                "model": model,
                "model_version": options.get("model_version"),
                "model_mount_destination": options.get("model_mount_destination", "/models"),
                "environ": dict(options.get("envs") or {}),
                "scaling_group": options.get("scaling_group"),
                "resources": {slot: str(amount) for slot, amount in (options.get("resources") or {}).items()},
                "resource_opts": dict(options.get("resource_opts") or {}),
            },
        }
        # Older servers do not know these: they are sent only if they say something.
        optional_fields = {name: options.get(name) for name in ("runtime_variant", "port", "policy")}
        body |= {name: value for name, value in optional_fields.items() if value is not None}
        for name in ("model_definition_path", "model_name", "claim"):
            if options.get(name):
                body["config"][name] = options[name]
        device_fields = {
            "variant_requirements": options.get("variant_requirements"),
            "device_requests": options.get("device_requests"),
        }
        body["config"] |= {name: [*expressions] for name, expressions in device_fields.items() if expressions}
        return body
