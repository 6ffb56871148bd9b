"""Creation, restart, end, recovery of kernels."""
