"""Twelve apps, each with an oracle in plain Python over its whole history, and the world that they live in.

Plan. A test that needs an app takes one from the cast and says what differs. There are three levels, and no other drivers:

========== ==============================================================================================================
pure task  the core's task, driven directly (``tests.core``, ``tests.proof.runs``)
world      workers on a log in memory or on disk, with all faults (``tests.cast.world``; ``Harness`` and ``System`` for users)
cluster    a broker and processes (``tests.kafka``), Spark (``tests.spark``)
========== ==============================================================================================================

``test_matrix`` runs each app of the cast under faults, replays it, rebuilds it along the tape and in stages, restores it from
a snapshot and moves it to other partitions. Results are compared with the oracle, and ways to the same state byte for byte. A room's own
tests are about what the matrix cannot show: refusals, limits, reports, and bugs that were found.
"""
