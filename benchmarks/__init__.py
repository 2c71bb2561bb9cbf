"""How fast, how large, how linear: each figure measured beside what it is compared with, in the same process.

`python -m benchmarks.run` prints the table, `--quick` runs everything once on little data.
"""
