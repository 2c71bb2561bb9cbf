"""A process and its machine: loading the app, environment, hash seed, signals, logs, child processes."""
