"""Pure ``step(state, event) -> (state, path, effects)`` over one literal transition table a file."""
