"""Wait until a name resolves: `python3 -m elastic_worker.startup.resolve NAME`.

It runs in an init container of a worker whose master may start later. It resolves as the training program will and needs no tool in the
image. It never gives up: the job's deadline limits the wait.
"""

import socket
import sys
import time
import typing

ASK_EVERY_S = 1.0
LOG_EVERY_S = 60.0


def resolves(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None))
    except OSError:
        return False


def wait_for(
    name: str,
    *,
    is_there: typing.Callable[[str], bool] = resolves,
    pause: typing.Callable[[float], None] = time.sleep,
    clock: typing.Callable[[], float] = time.monotonic,
) -> None:
    logged_at = clock() - LOG_EVERY_S
    while not is_there(name):
        if clock() - logged_at >= LOG_EVERY_S:
            print("waiting for the name {}".format(name), flush=True)
            logged_at = clock()
        pause(ASK_EVERY_S)


def main(words: typing.Sequence[str]) -> int:
    if len(words) != 1:
        print("usage: python3 -m elastic_worker.startup.resolve NAME", file=sys.stderr)
        return 2
    wait_for(words[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
