"""The command that runs code in a session."""
