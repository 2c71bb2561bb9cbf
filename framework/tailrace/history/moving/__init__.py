"""Moving apps from one log to another: what is copied, and the comparison of both logs."""
