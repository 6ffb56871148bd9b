"""Sealed variables of a session in the specification of its kernel."""

from __future__ import annotations

from ai.backend.manager.sessions.lifecycle.kernel_spec import kernel_spec
from tests.contract.store.builders import make_session


def test_secret_variables_are_apart_from_those_that_agents_store() -> None:
    session = make_session()
    spec = kernel_spec(session, session.kernels[0], secrets={"NGC_API_KEY": "nvapi-1"})
    assert spec.secret_environ == {"NGC_API_KEY": "nvapi-1"}
    assert "nvapi-1" not in spec.environ.values()
    assert "nvapi-1" not in repr(spec)
