"""The steps of a kernel's creation, one file each. Each is acquired in order and released in reverse."""
