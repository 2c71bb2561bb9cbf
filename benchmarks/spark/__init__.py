"""Cases of history: rebuilds with and without Spark, snapshots of a running service, services started from snapshots.

`processes` runs the measured commands and adds up the time of all their processes. `runs` is the process in which rebuilds are
measured. Each other module is a case. `make bench-spark` prints the table.
"""
