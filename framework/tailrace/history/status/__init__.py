"""The status of an app, from the log: positions, watermarks, lag, and the source that holds an operator back."""
