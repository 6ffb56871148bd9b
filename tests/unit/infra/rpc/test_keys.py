"""Key pairs of CURVE."""

from __future__ import annotations

import pytest
import zmq

from ai.backend.infra.rpc.zmq.keys import generate_keypair


def test_a_public_key_is_no_option_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(b"-" + b"a" * 39, b"s" * 40), (b"b" * 40, b"t" * 40)]
    monkeypatch.setattr(zmq, "curve_keypair", lambda: pairs.pop(0))
    pair = generate_keypair()
    assert (pair.public, pair.secret) == ("b" * 40, "t" * 40)
