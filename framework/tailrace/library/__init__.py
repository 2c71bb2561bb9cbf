"""The event-time library: windows, rolling aggregates and joins, written on what users have too.

An operator is an edge: ``app.window(...)`` and the like make an actor and return the stream of its results. A composite field is the same
piece inside an actor of the user. The core does not know this room; ``App`` is its front.
"""
