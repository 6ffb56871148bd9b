"""The processes that outlive the agent: a zygote and, forked from it, one shim per workload.

Standard library only, no threads, no asyncio: five hundred shims share the zygote's pages.
"""
