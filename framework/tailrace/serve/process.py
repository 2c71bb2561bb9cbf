"""The process of ``tailrace serve``: answers until a signal stops it."""

from __future__ import annotations

import faulthandler
import logging
import sys
from typing import Final

from tailrace.http.listening import Listen
from tailrace.http.server import Server
from tailrace.processes.signals import stop_signals
from tailrace.serve.answers import Questions
from tailrace.serve.followers import Followers
from tailrace.serve.page.page import Page
from tailrace.serve.web import Web

_log = logging.getLogger("tailrace.serve")
_OPEN = ("/livez", "/readyz")
"""What probes ask, which have no token."""
LEAVE_MOST_S: Final = 30.0
"""A process that is still there so long after the signal writes the stacks of its threads, and ends with code 1: a client of Kafka can
wait without end when it is closed. Nothing is lost, as the process only reads."""


def serve(listen: Listen, questions: Questions, followers: Followers, page: Page) -> None:
    """Answer until SIGTERM or Ctrl-C. Returns when the requests in progress have ended, or after 5 s. See also ``LEAVE_MOST_S``.

    Raises OptionError: the address is taken, or a file of TLS cannot be used.
    """
    server = Server(Web(questions, followers, page), listen, _OPEN)

    def stop() -> None:
        server.stop()
        faulthandler.dump_traceback_later(LEAVE_MOST_S, exit=True, file=sys.__stderr__ or 2)

    with stop_signals(stop):
        port = server.start()
        _log.info("answering", extra={"app": questions.plan.app, "host": listen.host, "port": port})
        server.join()
