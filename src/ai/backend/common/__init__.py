"""Vocabulary of the domain: ids, quantities, states, wire schemas, errors, signing. Pure: no IO, no clock, no
randomness."""
