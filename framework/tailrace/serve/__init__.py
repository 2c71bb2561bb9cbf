"""Answers questions about the committed state of an app: over HTTP, and on the command line.

It reads the changelog alone: never the store of a worker, and it takes no part in the work. Its copy of the state holds whole commits.
"""
