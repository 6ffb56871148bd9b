"""Requests and replies about workers (spec 03-14)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ai.backend.common.wire.appproxy import Slot, WorkerInfo
from ai.backend.infra.http.routes import Schema


class Success(Schema, frozen=True, kw_only=True):
    """Answers that a request succeeded (`StubResponseModel`)."""

    success: bool = True


class WorkerList(Schema, frozen=True, kw_only=True):
    """Answers with workers (`WorkerListResponseModel`)."""

    workers: list[WorkerInfo]


class Heartbeat(Schema, frozen=True, kw_only=True):
    """The optional body of a heartbeat: the node that sends it."""

    node: Annotated[str, msgspec.Meta(max_length=64)] = ""


class SlotsQuery(Schema, frozen=True, kw_only=True):
    """Asks for slots (`ListSlotsRequestModel`): ``wsproxy_host`` is the authority of a worker."""

    wsproxy_host: str | None = None
    in_use: bool = True


class SlotList(Schema, frozen=True, kw_only=True):
    """The reply with the slots of workers (``ListSlotsResponseModel`` of the published API)."""

    slots: list[Slot]


class WorkerStatus(Schema, frozen=True, kw_only=True):
    """Describes a worker and its slots (`WorkerInfoModel`)."""

    authority: str
    available_slots: int
    occupied_slots: int
    ha_setup: bool


class CoordinatorStatus(Schema, frozen=True, kw_only=True):
    """Describes the coordinator (`StatusResponseModel`). ``workers`` are the workers that are alive."""

    coordinator_version: str
    workers: list[WorkerStatus]


class Health(Schema, frozen=True, kw_only=True):
    status: str = "healthy"
