"""Loops and reports that move sessions: launch, terminate, watchdog, reconcile."""
