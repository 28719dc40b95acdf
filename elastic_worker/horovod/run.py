"""Runs horovodrun: `python run.py [its arguments]`, with the interpreter that it is installed for.

Where it discovers its hosts by our script and its version is known, it gets them from the rendezvous server and some flags beside the
user's. In any other case it runs as it is.
"""

import importlib.metadata
import os
import sys
import typing

SCRIPT = "/etc/mpi/discover_hosts.sh"
URL = "ELASTIC_HOSTS_URL"
KNOWN = "0.28."
INTERFACE = "eth0"
"""A container's own interface is called so by every runtime."""


def prepared(words: typing.Sequence[str], url: str) -> typing.List[str]:
    """The arguments for horovodrun, after our list of hosts was put into it where that can be."""
    from elastic_worker.horovod import driver, flags
    from elastic_worker.horovod.hosts import Hosts
    from elastic_worker.horovod.server import FOLDER, Server

    version = importlib.metadata.version("horovod")
    if not url or not flags.is_elastic(words) or not any(SCRIPT in word for word in words):
        return list(words)
    if not version.startswith(KNOWN):
        log("horovod {} is not known here; it asks for its hosts by {}".format(version, SCRIPT))
        return list(words)
    hosts = Hosts(Server(url, FOLDER), driver.remote_true(), driver.by_script(SCRIPT), log)
    driver.installed(hosts, SCRIPT)
    hosts.start()
    return flags.completed(words, os.environ, INTERFACE if os.path.exists("/sys/class/net/" + INTERFACE) else "")


def log(text: str) -> None:
    print("elastic-training: " + text, file=sys.stderr, flush=True)


def main() -> None:
    # The folder of this file would be searched first, and holds modules of common names.
    library = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path[0] = library
    from elastic_worker.horovod import driver

    sys.argv[1:] = prepared(sys.argv[1:], os.environ.pop(URL, ""))
    sys.argv[0] = "horovodrun"
    driver.run()


if __name__ == "__main__":
    main()
