"""Which pending session goes where: ``decide(snapshot, policy, *, now, rng) -> Plan``, pure and replayable."""
