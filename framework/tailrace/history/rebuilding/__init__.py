"""Rebuild: replays an app's history, in any number of processes, into a snapshot that a service can start
from.

``units`` runs one part of the work in any process; an engine hands out the parts; ``driver`` puts the results
together.
"""
