from __future__ import annotations

from ai.backend.core.lifecycle.diagram import arrows, render
from ai.backend.core.lifecycle.kernel import TRANSITIONS


def test_the_page_draws_every_arrow_of_both_tables() -> None:
    text = render()
    assert text.count("stateDiagram-v2") == 2
    for (source, target), triggers in arrows(TRANSITIONS).items():
        assert f"    {source} --> {target}: {', '.join(triggers)}\n" in text
