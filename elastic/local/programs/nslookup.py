"""Stand in for `nslookup NAME`: ask the resolver that every program of the pod uses, which knows the names of pods.

Any Python can run this file alone.
"""

import socket
import sys


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print("usage: nslookup NAME", file=sys.stderr)
        return 2
    name = sys.argv[1]
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        print(f"** cannot find {name}: {error.strerror}", file=sys.stderr)
        return 1
    for address in sorted({str(entry[4][0]) for entry in found}):
        print(f"Name:\t{name}\nAddress: {address}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
