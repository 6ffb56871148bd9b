"""Contract, fakes."""
