"""In-memory store with the semantics of the SQL one; used by simulations and tests."""
