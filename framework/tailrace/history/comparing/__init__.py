"""Compares two runs: cuts, state, outputs."""
