"""What a user writes: apps, topics, actors and handlers, checked where they are written and compiled to a
plan, and their context.
"""
