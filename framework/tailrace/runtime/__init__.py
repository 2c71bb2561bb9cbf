"""The life of a partition: assigned, restored, run slice by slice, committed, handed back; and of the workers that have them.

Joins the pure task of `core` to a log and a store, and decides nothing about what an event means.
"""
