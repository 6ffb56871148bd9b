"""Orders the queue of pending sessions."""
