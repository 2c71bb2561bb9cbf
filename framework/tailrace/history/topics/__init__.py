"""The topics of an app: what it needs, what it has, and which can be deleted."""
