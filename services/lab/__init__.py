"""Analysis of the flights: SQL, tables for other tools, a model that a service uses, routes as a graph, a notebook.

docs/analysis.md runs all of it, on a week of flights.
"""
