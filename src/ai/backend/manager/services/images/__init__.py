"""Images of containers: what registries and agents have, and what becomes of it."""
