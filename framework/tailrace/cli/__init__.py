"""The command line: ``tailrace <command>``, each command in a module of its own.

A command reads its arguments, calls what does the work, and says what came of it.
"""
