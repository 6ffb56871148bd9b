"""The programs that the kit runs inside workloads."""
