"""Benchmarks of speed, memory and growth. Each case and its baseline are measured in the same process.

`python -m benchmarks.run` prints the table. With `--quick`, everything runs once on little data.
"""
