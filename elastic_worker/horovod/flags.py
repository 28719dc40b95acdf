"""Choose the flags that horovodrun gets in addition to the user's own.

Pure. A flag that the user has set, or may have set in a file, is left out.
"""

import typing

COOLDOWN_S = ("1", "60")
"""Without a range, Horovod never uses a host again whose worker failed, also after a failure of another's making."""
GLOO_TIMEOUT_S = "60"
"""The time for a new worker to start: one that needs longer ends all others, and with them the job. Horovod's own default is 30 s.

It is also what a worker costs that stands still. A worker that ends costs less: `elastic_worker.horovod.watch` tells the others.
"""
WITH_LIBRARY_S = 10
"""The timeout for workers that initialise Horovod only once their whole world is there. A worker that stands still costs as long."""
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


def _has(words: typing.Sequence[str], *names: str) -> bool:
    """Tell whether one of these flags is there. The command's own flags look the same, and there these names mean nothing else."""
    return any(word.split("=", 1)[0] in names for word in words)
