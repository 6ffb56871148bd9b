"""Contract, tree model."""
