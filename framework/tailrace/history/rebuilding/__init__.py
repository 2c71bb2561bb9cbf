"""Rebuild: an app's history run again, in as many processes as there are, into a snapshot that a service starts from.

``units`` is what any process can do a part of the work with; an engine hands the parts out; ``driver`` puts them together.
"""
