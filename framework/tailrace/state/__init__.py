"""Where keyed state is kept: rows in memory or in RocksDB, behind the store interface of `core`.

A store writes one commit at a time, atomically, with the log position it stands at.
It does not know what its rows mean.
"""
