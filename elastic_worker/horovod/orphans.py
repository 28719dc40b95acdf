"""Ends a worker's command that ssh has started when the launcher is gone. sshd closes the connection then and leaves the command running.

A worker that prints nothing would train on beside those of the next launcher. Our exec client has its own watcher.
"""

import shlex

WATCHER = (
    'read -r _ _ _ _ group _ </proc/$$/stat; [ "$group" = $$ ] && ( trap "" TERM INT HUP;'
    " while [ -d /proc/$PPID ] && [ -d /proc/$$ ]; do sleep 1; done;"
    " [ -d /proc/$$ ] || exit 0; kill -s TERM 0; sleep 10; kill -s KILL 0"
    " ) </dev/null >/dev/null 2>&1 & "
)
"""The shell's parent is sshd's process for this connection. sshd makes the shell a group leader; elsewhere there is no watcher."""


def watched(quoted: str) -> str:
    """The command for a remote shell, one quoted word before and after, with a watcher beside it."""
    (command,) = shlex.split(quoted)
    return shlex.quote(WATCHER + command)
