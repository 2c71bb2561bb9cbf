"""What a process needs from its machine: the app it runs, its environment, hash seed, signals, logs, and ownership of tasks."""
