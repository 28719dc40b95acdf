"""Waits until a name resolves: `python3 -m elastic_worker.resolve NAME`, in an init container of a worker whose master may come later.

It asks as the training program will, needs no tool in the image, and gives up never: how long a job may wait is for its deadline to say.
"""

import socket
import sys
import time
import typing

LOOK_EVERY_S = 1.0
SAY_EVERY_S = 60.0


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
    said = clock() - SAY_EVERY_S
    while not is_there(name):
        if clock() - said >= SAY_EVERY_S:
            print("waiting for the name {}".format(name), flush=True)
            said = clock()
        pause(LOOK_EVERY_S)


def main(words: typing.Sequence[str]) -> int:
    if len(words) != 1:
        print("usage: python3 -m elastic_worker.resolve NAME", file=sys.stderr)
        return 2
    wait_for(words[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
