"""The example services at work, for whoever looks on: ``python -m services.demo``.

A year of flights through two real processes, one of which is killed on the way, and all of it replayed; or the small
examples, a scene for each.
"""
