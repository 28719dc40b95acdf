"""Keeps sockets of this process from processes that it forks, for example from the workers of a DataLoader.

A forked process inherits every socket. If this process ends, a socket that somebody else still holds stays open, and its peer learns
nothing. Python closes its sockets only in processes that begin with exec (`spawn`, `forkserver`, subprocess).
"""

import os
import socket
import weakref

_kept = weakref.WeakSet()  # type: weakref.WeakSet[socket.socket]


def keep_from_children(own: socket.socket) -> None:
    """Close this socket in every process that is forked from now on."""
    if not _kept:
        os.register_at_fork(after_in_child=_close)
    _kept.add(own)


def _close() -> None:
    for own in list(_kept):
        own.close()
    _kept.clear()
