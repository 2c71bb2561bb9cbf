"""Spark for Tailrace's data: the past of a log and snapshots as tables, and rebuilds on a cluster.

PySpark and PyArrow are in the extra ``tailrace[spark]``. No code outside of this folder needs PySpark.
"""

from tailrace.spark.cut import cut
from tailrace.spark.session import register, running, session

__all__ = ["cut", "register", "running", "session"]
