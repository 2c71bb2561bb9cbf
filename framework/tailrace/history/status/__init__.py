"""The status of an app, from the log: positions, watermarks, lag, what holds an operator back."""
