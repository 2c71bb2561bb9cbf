"""Snapshots of an app: taking one from the log, and starting a service from one."""
