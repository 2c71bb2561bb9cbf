"""Run a program that the kernel kills as soon as its parent ends, however the parent ends::

    python bound.py PARENT COMMAND...

PARENT is the process that starts this one. The program replaces this process, so it has the same process number. The kernel
looks at the *thread* of the parent: a thread that starts a broker must outlive it.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, *command = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != int(parent):
        sys.exit(f"the parent {parent} has ended already")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
