"""The client SDK: compute sessions from Python, blocking (`session.Session`) or asyncio (`session.AsyncSession`).

Source: spec 03-11 and 03-12; on the wire it speaks what the published client speaks (client wire contract).
"""
