"""Controls access to circuits by permits, set-up codes, tokens of inference endpoints, and addresses."""
