"""Sessions with their kernels: creation, life cycle, stores and API."""
