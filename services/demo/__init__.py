"""A demonstration of the example services: ``python -m services.demo``.

It runs a year of flights through two real processes, kills one of them on the way, and replays everything. Or it runs the
small examples, one scene for each.
"""
