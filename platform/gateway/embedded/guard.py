"""Run a command that does not outlive the process that started it.

::

    python guard.py PARENT SIGNAL [--user UID:GID] -- COMMAND …

A script, not an import: it runs between fork and exec, where a thread-ridden parent may do nothing, and it starts with
``-S -E`` in some milliseconds. Linux only tells a child of its parent's death when asked to; the request is forgotten
when the user changes, hence the order. Elsewhere the command simply runs.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, signal, *rest = sys.argv[1:]
    if rest[0] == "--user":
        uid, gid = (int(part) for part in rest[1].split(":"))
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
        rest = rest[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal), 0, 0, 0)
        if os.getppid() != int(parent):
            sys.exit(1)  # it died before we asked
    os.execvp(rest[1], rest[1:])  # noqa: S606 - no shell is the point


main()
