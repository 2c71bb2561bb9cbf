"""Commands that run a service set up the logs of their process; those of the tests' process are pytest's."""

from __future__ import annotations
