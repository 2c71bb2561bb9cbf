"""Spark over what Tailrace keeps: the log and its archive as tables, snapshots as tables, a rebuild's work done by a cluster.

PySpark and PyArrow are the extra ``tailrace[spark]``; nothing outside this room needs them to be there.
"""

from tailrace.spark.cut import cut
from tailrace.spark.session import register, running, session

__all__ = ["cut", "register", "running", "session"]
