"""Versions of one app, and another service that was given its name."""
