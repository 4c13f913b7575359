"""Connections that say nothing, in a process of their own: `python idle.py HOST PORT COUNT`.

Prints how many are open, waits for a line on standard input, prints how many still are, and ends.
"""

from __future__ import annotations

import resource
import select
import socket
import sys


def main() -> None:
    host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(count + 100, hard), hard))
    sockets = [socket.create_connection((host, port), timeout=30) for _ in range(count)]
    print(len(sockets), flush=True)
    sys.stdin.readline()
    poll = select.poll()
    for each in sockets:
        poll.register(each, select.POLLIN)
    # Whoever has something to say closes.
    print(count - len(poll.poll(0)), flush=True)


if __name__ == "__main__":
    main()
