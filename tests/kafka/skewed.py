"""The command line under a clock that is wrong: ``python -m tests.kafka.skewed SECONDS run …``."""

import sys
import time

skew_ns = int(sys.argv.pop(1)) * 1_000_000_000
right = time.time_ns
time.time_ns = lambda: right() + skew_ns

if __name__ == "__main__":
    from tailrace.cli.main import main

    main()
