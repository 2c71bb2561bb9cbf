"""Rebuild: replays an app's history, in any number of processes, into a snapshot to start a service from.

``units`` runs one part of the work in any process; an engine hands out parts; ``driver`` joins the results.
"""
