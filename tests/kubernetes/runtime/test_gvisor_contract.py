"""Pods of the runtime class of gVisor keep the same contract."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from ai.backend.plugin.runtime import WorkloadSpec
from tests.kubernetes.runtime.test_contract import TestKubernetes as _OnRunc


@pytest.mark.slow
@pytest.mark.needs("kubernetes", "gvisor")
class TestOnGvisor(_OnRunc):
    def spec(self, kernel: UUID | None = None, attempt: int = 1, **changes: Any) -> WorkloadSpec:
        return super().spec(kernel, attempt, runtime_class="gvisor", **changes)
