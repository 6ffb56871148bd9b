"""Defines state machines as pure functions ``step(state, event) -> (state, transitions, effects)`` by tables."""
