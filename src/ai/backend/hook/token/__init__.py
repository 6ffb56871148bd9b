"""Sign-in by tokens that another site signs."""
