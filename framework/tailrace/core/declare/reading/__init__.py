"""What functions may do, read from their bytecode without running it.

``values``: what is known of a value. ``frames``: what is noted of functions and calls. ``flow``: where values go,
from function to function. ``bytecode``: one function.
"""
