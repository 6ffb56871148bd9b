"""Which agent is taken."""
