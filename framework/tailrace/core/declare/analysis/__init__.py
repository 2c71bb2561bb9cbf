"""Static analysis of handlers: follows values through their bytecode without running it.

``values``: abstract values, and attribute lookup on them. ``frames``: the functions and calls that were found.
``flow``: data flow between functions. ``bytecode``: abstract interpretation of one function.
"""
