from __future__ import annotations

import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.http.fields import duration_s


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("1.5h", 5_400), ("2d", 172_800), (30.0, 30), (None, None)])
def test_units(text: float | str | None, seconds: float | None) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "1x", "-5", "0", "nan", "h", "9e400"])
def test_what_is_malformed_is_blamed_on_the_field_of_the_request(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        duration_s(text, field="duration")
    assert list(caught.value.data) == ["duration"]
