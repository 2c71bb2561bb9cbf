"""Moving apps from one log to another: where an app lives, what is copied, and the comparison of both logs."""
