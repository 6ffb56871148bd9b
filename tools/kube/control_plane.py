"""A control plane that runs on another machine than the node of a cluster."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_VARIABLE = "BACKENDAI_KUBE_CONTROL_PLANE"


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """Names the address of an API server, and the folder with the certificate and the key of its authority."""

    address: str
    authority: Path

    @property
    def variable(self) -> tuple[str, str]:
        """The name and the value of the variable by which :meth:`from_environment` returns it."""
        return _VARIABLE, f"{self.address}:{self.authority}"

    @classmethod
    def from_environment(cls) -> ControlPlane | None:
        """Return the one that a variable of the environment names, for tests of its node; None without it."""
        address, _, authority = os.environ.get(_VARIABLE, "").partition(":")
        return cls(address, Path(authority)) if address else None
