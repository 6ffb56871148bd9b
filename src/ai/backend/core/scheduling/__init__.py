"""Decides which pending session runs on which agents: ``decide(snapshot, policy, *, now, rng) -> Plan``, replayable."""
