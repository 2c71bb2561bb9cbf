"""`tailrace upgrade`: a new version of an app takes over from the one that runs, with a state made from history.

`driver` has the steps, `tasks` what a process of each version does, `corrections` what becomes of the outputs.
"""
