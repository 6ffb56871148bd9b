"""Files of the agent: records, outbox, epoch."""
