"""Own password, key, config."""
