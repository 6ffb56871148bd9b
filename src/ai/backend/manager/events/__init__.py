"""Session events (SSE) and webhooks."""
