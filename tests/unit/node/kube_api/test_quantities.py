"""Quantities of Kubernetes are read exactly."""

from __future__ import annotations

from decimal import Decimal

import pytest

from ai.backend.common.errors import InvalidQuantity
from ai.backend.node.kube_api.quantities import parse_quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2", 2),
        ("0", 0),
        ("1500m", Decimal("1.5")),
        ("100u", Decimal("0.0001")),
        ("3n", Decimal("3e-9")),
        ("64Ki", 65536),
        ("8148564Ki", 8148564 * 1024),
        ("2Gi", 2 << 30),
        ("1.5Gi", 3 << 29),
        ("1E", 10**18),
        ("1Ei", 1 << 60),
        ("1e3", 1000),
        ("12E2", 1200),
        ("500k", 500_000),
        ("-1", -1),
    ],
)
def test_quantities(text: str, number: int | Decimal) -> None:
    assert parse_quantity(text) == number


@pytest.mark.parametrize(
    "text", ["", "m", "Gi", "1g", "1KI", "NaN", "Infinity", "1 Gi", "0x1", "9" * 65, "--1", "1Mii"]
)
def test_no_quantities(text: str) -> None:
    with pytest.raises(InvalidQuantity):
        parse_quantity(text)
