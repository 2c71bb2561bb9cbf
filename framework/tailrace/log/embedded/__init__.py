"""An event log on one machine, without a server: durable, transactional, fenced, shared by processes.

``EmbeddedLog`` implements ``tailrace.log.Log`` over a folder with a SQLite database. ``database`` describes the tables,
``appending`` how a commit is written, ``lock`` the lock for writers, ``view`` how processes follow each other's writes.
"""

from tailrace.log.embedded.log import EmbeddedLog

__all__ = ["EmbeddedLog"]
