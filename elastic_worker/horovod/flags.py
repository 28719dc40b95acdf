"""Choose the flags that horovodrun gets in addition to the user's own.

Pure. A flag that the user has set, or may have set in a file, is left out.
"""

import math
import typing

COOLDOWN_S = ("1", "60")
"""Without a range, Horovod never uses a host again whose worker failed, also after a failure of another's making."""
GLOO_TIMEOUT_S = "60"
"""Seconds for a new worker to start. A worker that needs longer ends all others, and with them the job. Horovod's own default is 30 s.

After this time, the others also notice a worker that stands still. `elastic_worker.horovod.watch` tells them at once of a worker that ends.
"""
WITH_LIBRARY_S = 10
"""The timeout for workers that initialise Horovod only once their whole world is ready."""
STILL_S = 60.0
"""Least time for which workers wait for one that stands still. It begins when gloo's timeout has freed them."""
DISCOVERY = "--host-discovery-script"


def is_elastic(words: typing.Sequence[str]) -> bool:
    """Return whether this command line discovers its hosts."""
    return _has(words, DISCOVERY)


def completed(words: typing.Sequence[str], environ: typing.Mapping[str, str], interface: str) -> typing.List[str]:
    """Return the command line with the defaults that elastic training in pods needs. `interface` is the pod's own, if it is known."""
    if _has(words, "--config-file"):
        return list(words)
    added: typing.List[str] = []
    if interface and not _has(words, "--network-interface", "--network-interfaces"):
        added += ["--network-interface", interface]
    if not _has(words, "--blacklist-cooldown-range"):
        added += ["--blacklist-cooldown-range", *COOLDOWN_S]
    if not has_own_timeout(words, environ):
        added += ["--gloo-timeout-seconds", GLOO_TIMEOUT_S]
    return [*added, *words] if is_elastic(words) else list(words)


def has_own_timeout(words: typing.Sequence[str], environ: typing.Mapping[str, str]) -> bool:
    """Tell whether the user has chosen gloo's timeout. A file of options may hold one."""
    return _has(words, "--gloo-timeout-seconds", "--config-file") or "HOROVOD_GLOO_TIMEOUT_SECONDS" in environ


def still_s(words: typing.Sequence[str], environ: typing.Mapping[str, str]) -> float:
    """Return the seconds after which a worker that does not leave a lost world is ended; infinity if a file may set gloo's timeout.

    A worker that has just started may need gloo's timeout to notice that its world is lost.
    """
    found = environ.get("HOROVOD_GLOO_TIMEOUT_SECONDS", "")
    for number, word in enumerate(words):
        name, _, value = word.partition("=")
        if name == "--config-file":
            return math.inf
        if name == "--gloo-timeout-seconds":
            found = value or "".join(words[number + 1 : number + 2])
    return max(STILL_S, float(found)) if found.isdigit() else STILL_S


def _has(words: typing.Sequence[str], *names: str) -> bool:
    """Return whether one of these flags is given. Flags of the user's command count too, but these names have no other meaning there."""
    return any(word.split("=", 1)[0] in names for word in words)
