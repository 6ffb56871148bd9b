"""The cluster of the tests has a network plug-in that knows no policies: the probe says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from ai.backend.runtime.kubernetes.isolation import are_policies_enforced
from tests.kubernetes.runtime.sites import Site


@pytest.mark.needs("kubernetes")
async def test_a_plug_in_without_policies_is_found_out(tmp_path: Path, session_site: Site) -> None:
    opened = session_site.open(tmp_path)
    await opened.runtime.setup()  # which makes the default policy
    try:
        assert await are_policies_enforced(opened.api, opened.settings) is False
        assert opened.runtime.info().tier == "pod"
    finally:
        await opened.runtime.shutdown()
        await opened.api.close()
    session_site.require_nothing_left()
