"""Commands on the user's own password, keys and configuration."""
