"""The types of the events: what other programs write and read."""
