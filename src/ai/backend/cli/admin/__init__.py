"""Commands of administrators."""
