"""Who is tried first."""
