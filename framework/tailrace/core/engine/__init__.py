"""The task: the steps of one partition, its live state, timers and watermarks, its tape and its replay."""
