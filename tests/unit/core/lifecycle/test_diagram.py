from __future__ import annotations

from ai.backend.core.lifecycle.diagram import MACHINES, render, triggers_by_state_change


def test_the_page_draws_every_arrow_of_all_tables() -> None:
    text = render()
    assert text.count("stateDiagram-v2") == len(MACHINES) == 10
    for machine in MACHINES:
        for (source, target), triggers in triggers_by_state_change(machine.table).items():
            names = source.replace("-", "_"), target.replace("-", "_")
            assert f"    {names[0]} --> {names[1]}: {', '.join(triggers)}\n" in text
        assert all(f"| {state} | {trigger} | *refused* | |" in text for state, trigger in machine.refused)


def test_the_page_names_handlers_and_effects() -> None:
    text = render()
    assert "| RUNNING | restart-requested | RESTARTING | restart |" in text
    assert "| delete-pending | purge-requested | delete-ongoing | remove-files |" in text
    assert "| running | agent-restarted | running | adopt |" in text
    assert "| PULLING | cleanup-requested | *refused* | |" in text
