"""The past of an app: read stretches of the log, fold changelogs, drive tasks along their tape, compare, rebuild.

The live service is in ``runtime``, which uses this package.
"""
