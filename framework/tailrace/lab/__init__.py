"""Commands over history: state, topics and snapshots as natural tables, and versions of an app compared.

Nobody but `cli` imports this room. Needs pyarrow when used.
"""
