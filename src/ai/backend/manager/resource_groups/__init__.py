"""Resource groups and whom they are open to."""
