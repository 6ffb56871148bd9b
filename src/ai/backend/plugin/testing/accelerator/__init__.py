"""Contract, scaffold, skeleton/."""
