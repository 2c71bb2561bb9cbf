"""Example services, each a small program on the public API; each runs alone and in a container.

They share nothing but the event types in `schemas`.
"""
