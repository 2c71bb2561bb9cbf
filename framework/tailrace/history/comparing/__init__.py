"""Hold two runs against each other: cuts, state, outputs."""
