"""The steps of a kernel's creation; each acquires and releases one resource."""
