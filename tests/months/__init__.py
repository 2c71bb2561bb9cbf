"""The model team: months in the life of a service, by its command line: events, runs, upgrades, crashes, rebuilds. After each
step its state and outputs must be what an oracle says that knows the events and the versions of the code alone.
"""
