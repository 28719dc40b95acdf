"""Run horovodrun: `python run.py [its arguments]`, with the interpreter that it is installed for.

If the command uses our discovery script and we support its version of Horovod, horovodrun gets its hosts from the rendezvous server, and
some added flags. Otherwise it runs unchanged.
"""

import importlib.metadata
import os
import sys
import time
import typing

if typing.TYPE_CHECKING:
    from elastic_worker.horovod.hosts import Hosts

FOLDER = "/etc/elastic-training"
SCRIPT = "/etc/mpi/discover_hosts.sh"
URL = "ELASTIC_HOSTS_URL"
KNOWN = "0.28."
STARTED_AGAIN_AT = "ELASTIC_STARTED_AGAIN_AT"
AGAIN_AFTER_S = 120.0
"""Seconds after a restart in which another failure counts as the program's own."""
INTERFACE = "eth0"
"""A container's own interface, which has this name in every container runtime."""


def prepared(words: typing.Sequence[str], url: str) -> "typing.Tuple[typing.List[str], typing.Optional[Hosts]]":
    """Return the arguments for horovodrun, after putting our list of hosts into it if that is possible."""
    from elastic_worker.horovod import driver, flags, reach
    from elastic_worker.horovod.hosts import Hosts
    from elastic_worker.horovod.server import Server

    version = importlib.metadata.version("horovod")
    if not url or not flags.is_elastic(words) or not any(SCRIPT in word for word in words):
        return list(words), None
    if not version.startswith(KNOWN):
        log("Horovod {} is not supported ({}x is); horovodrun polls {} for its hosts instead".format(version, KNOWN, SCRIPT))
        return list(words), None
    direct = reach.by_exec(os.environ) if driver.is_by_remote_shell() else None
    hosts = Hosts(lambda: Server(url, FOLDER), reach.either(direct, reach.by_command(driver.remote_true())), driver.by_script(SCRIPT), log)
    os.environ.update(for_workers(url, os.environ))
    driver.installed(
        hosts, SCRIPT, None if flags.has_own_timeout(words, os.environ) else flags.WITH_LIBRARY_S, log, flags.still_s(words, os.environ)
    )
    hosts.start()
    return flags.completed(words, os.environ, INTERFACE if os.path.exists("/sys/class/net/" + INTERFACE) else ""), hosts


def for_workers(url: str, environ: typing.Mapping[str, str]) -> typing.Dict[str, str]:
    """Return the variables that horovodrun passes on: the paths of our library in workers, and their job.

    The folder `bootstrap` comes first, because otherwise the user's `sitecustomize` hides ours (which runs the user's afterwards).
    """
    here = os.path.dirname(os.path.abspath(__file__))
    library, bootstrap = os.path.dirname(os.path.dirname(here)), os.path.join(here, "bootstrap")
    paths = [path for path in environ.get("PYTHONPATH", "").split(":") if path and path not in (library, bootstrap)]
    return {"PYTHONPATH": ":".join([bootstrap, *paths, library]), "ELASTIC_JOB_UID": url.rstrip("/").split("/")[-2]}


def log(text: str) -> None:
    print("elastic-training: " + text, file=sys.stderr, flush=True)


def main() -> None:
    # Python searches the folder of this file first, and its modules have common names that would hide others.
    library = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path[0] = library
    from elastic_worker.horovod import driver

    given, environ = list(sys.argv), dict(os.environ)
    sys.argv[1:], hosts = prepared(sys.argv[1:], os.environ.pop(URL, ""))
    sys.argv[0] = "horovodrun"
    try:
        driver.run()
    except BaseException as end:
        if hosts is not None and URL in environ and may_start_again(end, hosts.lost(), environ):
            os.execve(sys.executable, [sys.executable, *given], {**environ, STARTED_AGAIN_AT: str(int(time.time()))})
        raise


def may_start_again(end: BaseException, lost: typing.Sequence[str], environ: typing.Mapping[str, str]) -> bool:
    """Return whether horovodrun failed soon after it lost hosts. It cannot continue without some hosts, so the program is not to blame."""
    failed = not isinstance(end, (KeyboardInterrupt, GeneratorExit)) and not (isinstance(end, SystemExit) and not end.code)
    since_s = time.time() - float(environ.get(STARTED_AGAIN_AT) or 0)
    if not failed or not lost or since_s < AGAIN_AFTER_S:
        return False
    log("horovodrun ended ({!r}) after the loss of {}; restarting it".format(end, ", ".join(lost)))
    return True


if __name__ == "__main__":
    main()
