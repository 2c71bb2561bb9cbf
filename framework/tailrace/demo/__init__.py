"""A first look: a service that is killed in the middle of its work, resumes, and is replayed.

``cards`` is the service, ``history`` its events and what plain Python makes of them, ``session`` runs the commands.
"""
