"""Errors of OpenStack, as operations report them."""

from __future__ import annotations

from ai.backend.common.errors import PeerRefused, Unavailable


class CloudUnavailable(
    Unavailable, code="cloud-unavailable", title="A service of the cloud does not answer, or not sensibly; try again."
): ...


class BindFailed(
    CloudUnavailable, code="bind-failed", title="The cloud has not bound the accelerator to the machine."
): ...


class CloudRefused(PeerRefused, code="cloud-refused", title="A service of the cloud refuses what we ask."): ...
