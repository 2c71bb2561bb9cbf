"""The meaning of a service: declarations, values, timers, watermarks, the tape, and the task.

The task takes the steps. Pure and synchronous: no I/O, no clock, no randomness. Order, time and chance come
in from outside. This room imports no other.
"""
