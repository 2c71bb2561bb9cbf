"""Answers questions about the committed state and the tables of an app: over HTTP, and on the command line.

It reads the changelog and the tables alone: never the store of a worker, and it takes no part in the work. Its copy of the state holds whole
commits.
"""
