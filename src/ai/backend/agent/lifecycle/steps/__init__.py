"""Contains the steps of a kernel's creation. Each acquires and releases one resource."""
