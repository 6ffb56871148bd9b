"""The machines of sessions and kernels: pure ``step(state, event) -> (state, effects)`` over one table each."""
