"""Storage hosts and what may be done on them."""
