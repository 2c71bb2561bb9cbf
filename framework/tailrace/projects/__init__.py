"""Folders for new services, as `tailrace new` writes them.

The templates are services that run as they are; ``shop`` in them stands for the name.
"""
