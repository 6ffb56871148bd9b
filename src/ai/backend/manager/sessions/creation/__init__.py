"""From a request to a session."""
