"""What a daemon process needs."""
