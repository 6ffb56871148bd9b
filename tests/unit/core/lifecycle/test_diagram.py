from __future__ import annotations

from ai.backend.core.lifecycle import artifact, kernel, session
from ai.backend.core.lifecycle.diagram import arrows, render


def test_the_page_draws_every_arrow_of_all_tables() -> None:
    text = render()
    assert text.count("stateDiagram-v2") == 3
    lines = [
        *((source, target, ", ".join(by)) for (source, target), by in arrows(kernel.TRANSITIONS).items()),
        *((source, target, ", ".join(by)) for (source, target), by in arrows(session.TRANSITIONS).items()),
        *((source, target, ", ".join(by)) for (source, target), by in arrows(artifact.TRANSITIONS).items()),
    ]
    for source, target, triggers in lines:
        assert f"    {source} --> {target}: {triggers}\n" in text
