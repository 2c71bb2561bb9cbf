"""What tests a service without a server: harness, in-memory log, faults as values, simulator, pytest plugin.

Drives the same task and the same commit as a live worker, so that what a test shows is what a service does.
"""
