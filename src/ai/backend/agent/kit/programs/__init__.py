"""Contains the programs that the kit runs inside workloads."""
