"""The command line, for ``spark-submit``: ``spark-submit submit.py rebuild APP --engine spark``."""

from tailrace.cli.main import main

main()
