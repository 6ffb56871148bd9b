"""Holds the migrations of all features, in one linear history."""
