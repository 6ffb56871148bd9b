"""Networks of sessions."""
