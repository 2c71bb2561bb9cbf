"""The live service: a partition is assigned, restored, run slice by slice, committed and handed back; workers own partitions.

Joins the pure task of `core` to a log and a store, and decides nothing about what an event means.
"""
