"""The vocabulary of the domain: ids, quantities, states, messages, errors, signing. No IO, clock or randomness."""
