"""Services inside sessions."""
