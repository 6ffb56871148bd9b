"""What crosses process boundaries, as msgspec structs."""
