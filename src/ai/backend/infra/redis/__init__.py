"""What daemons of several processes share through Redis or Valkey: hints and rate limits. Nothing there must last."""
