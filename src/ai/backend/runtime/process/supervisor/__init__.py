"""The processes that outlive the agent, with the standard library only: a zygote and, forked from it, a shim each."""
