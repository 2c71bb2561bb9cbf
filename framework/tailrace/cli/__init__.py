"""The command line: ``tailrace <command>``. Each command has its own module.

A command reads its arguments, calls the library for the work, and prints the result.
"""
