"""An event log on one machine, without a server: durable, transactional, fenced, shared by processes.

``EmbeddedLog`` implements ``tailrace.log.Log`` over a folder. How its files are laid out is in ``frames``, who may
write and when in ``lock``, how processes follow one another's writes in ``view``.
"""

from tailrace.log.embedded.claims import Claim, Owner, claim, end_stopped, owner_of
from tailrace.log.embedded.cleaning import Cleaned
from tailrace.log.embedded.log import EmbeddedLog, LogOptions

__all__ = [
    "Claim",
    "Cleaned",
    "EmbeddedLog",
    "LogOptions",
    "Owner",
    "claim",
    "end_stopped",
    "owner_of",
]
