"""Does this state belong to this log? What is noted of where a state comes from, and how a log is compared with it."""
