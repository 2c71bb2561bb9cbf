"""Replay: run a task again along its tape, and compare the result with that of the first run."""
