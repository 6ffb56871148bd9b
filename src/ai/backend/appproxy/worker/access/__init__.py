"""Access to circuits: permits, set-up codes, tokens of inference endpoints, addresses."""
