"""REST routes of agents."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ai.backend.infra.http.fields import Name
from ai.backend.infra.http.routes import Schema


class DeviceOperationBody(Schema, frozen=True):
    action: Name
    device_id: Annotated[str, Meta(min_length=1, max_length=512)]
    argument: Annotated[str, Meta(max_length=4096)] = ""


class SchedulerBody(Schema, frozen=True):
    op: Literal["include-agents", "exclude-agents"]
    args: Annotated[list[Annotated[str, Meta(min_length=1, max_length=64)]], Meta(min_length=1, max_length=10_000)]
