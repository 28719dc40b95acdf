"""End a worker's command that ssh has started when the launcher is gone, because sshd closes the connection and lets the command run on.

A worker that prints nothing would continue to train next to the workers of the next launcher. Our exec client has its own watcher.
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
    """Return the command for a remote shell with a watcher next to it. Both commands are one quoted word."""
    (command,) = shlex.split(quoted)
    return shlex.quote(WATCHER + command)
