"""Snapshots of an app: take one from the log, and start a service from one."""
