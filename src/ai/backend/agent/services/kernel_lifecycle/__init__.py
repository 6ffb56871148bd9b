"""Creation, restart, destruction and recovery of kernels."""
