"""The past of an app: read stretches of the log, fold changelogs, drive tasks along their tape, compare, rebuild.

What is live is in ``runtime``, which uses this room.
"""
