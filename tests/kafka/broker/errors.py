"""The error of everything that keeps a test from its broker."""


class NoBrokerError(RuntimeError):
    """There is no broker, and the message says why. A test that needs one fails with it and is never skipped."""
