"""Creates, restarts, ends and recovers kernels."""
