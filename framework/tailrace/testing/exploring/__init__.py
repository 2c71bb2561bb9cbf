"""The race detector: one history run under many schedules, to find what depends on the schedule.

A *feed* is what the inputs hold, a *schedule* how they are read. A *run* is one schedule from start to end; what it emits
and keeps is compared, key by key, with the run of schedule 0. For a key that differs both runs are repeated with every
handler call on record (*tracks*), and the place where the two *part* is found and explained.
"""
