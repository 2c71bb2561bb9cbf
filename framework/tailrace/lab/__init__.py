"""Commands over history: state, topics and snapshots as natural tables, now or as of a time.

Nobody but `cli` imports this room. Needs pyarrow when used.
"""
