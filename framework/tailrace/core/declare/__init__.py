"""What a user writes: apps, topics, actors, handlers, and the context that handlers get.

Declarations are checked where they are written, and compiled to a plan.
"""
