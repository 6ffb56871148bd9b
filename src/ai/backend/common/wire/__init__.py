"""The messages between processes, as msgspec structs."""
