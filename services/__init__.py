"""Example services: small programs on the public API. Each runs alone, also in a container.

They share only the event types in `schemas`.
"""
