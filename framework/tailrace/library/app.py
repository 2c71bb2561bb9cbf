"""The app with the operators of the library: what ``tailrace.App`` is."""

from __future__ import annotations

from tailrace.core.declare.app import App as CoreApp


class App(CoreApp):
    """See ``core.declare.app.App``; its methods for windows and joins are here."""


App.__doc__ = CoreApp.__doc__
