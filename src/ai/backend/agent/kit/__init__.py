"""The kit: an interpreter of ours, with libraries, in which the services that every session has run (ADR 0130)."""
