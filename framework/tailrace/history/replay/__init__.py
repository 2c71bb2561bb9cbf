"""Replay: run a task again along its tape and compare the result with what the first run left."""
