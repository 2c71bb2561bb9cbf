"""The race detector: one history run under many schedules, to find what depends on the schedule.

A *feed* holds the records of the inputs. A *schedule* decides how they are read. A *run* executes one
schedule from start to end. Its outputs and its state are compared, key by key, with the run of schedule 0. If
a key differs, both runs are repeated and every handler call is recorded (*tracks*). Then the place where the
two *part* is found and explained.
"""
