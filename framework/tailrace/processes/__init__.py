"""A process and its machine: loading the app, environment, signals, logs, child processes."""
