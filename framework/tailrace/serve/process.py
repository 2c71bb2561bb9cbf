"""The process of ``tailrace serve``: answers until a signal stops it."""

from __future__ import annotations

import logging

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


def serve(listen: Listen, questions: Questions, followers: Followers, page: Page) -> None:
    """Answer until SIGTERM or Ctrl-C. Returns when the requests in progress have ended, or after 5 s.

    Raises OptionError: the address is taken, or a file of TLS cannot be used.
    """
    server = Server(Web(questions, followers, page), listen, _OPEN)
    with stop_signals(server.stop):
        port = server.start()
        _log.info("answering", extra={"app": questions.plan.app, "host": listen.host, "port": port})
        server.join()
