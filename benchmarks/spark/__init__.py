"""What history is good for: rebuilds, by Spark and without it, snapshots taken beside a service, services started from them.

`processes` runs what is measured and adds up the time of all its processes; `runs` is what a rebuild is measured in; each
other module is a case. `make bench-spark` prints the table.
"""
