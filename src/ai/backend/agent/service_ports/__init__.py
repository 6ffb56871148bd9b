"""Services inside sessions and connections to their ports."""
