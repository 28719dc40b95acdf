"""Control Python's garbage collector while modules are imported.

The collector walks again and again over the objects of the modules and frees almost nothing: this is a quarter of the time that torch takes
to import. A process that imports for others pauses it. A program that imports for itself begins with it postponed, until it says `resume`.
"""

import contextlib
import gc
import os
import typing

MANY = 1000000
"""Number of additional objects after which the next collection begins. Importing torch makes half as many; Python's own number is 700 or
2000. It limits the memory that objects can fill which only a collection frees."""
FORMER = "ELASTIC_GC_THRESHOLD"


@contextlib.contextmanager
def paused() -> typing.Iterator[None]:
    """Collect nothing in this block. Objects that exist at its end count as old."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        _age()
        if was_enabled:
            gc.enable()


def postpone() -> None:
    """Collect rarely. The former setting is kept in the environment, because the program may load this module again."""
    former, *others = gc.get_threshold()
    os.environ[FORMER] = str(former)
    gc.set_threshold(MANY, *others)


def resume() -> None:
    """Collect as before `postpone`, unless the program has changed the setting meanwhile.

    Objects that exist now count as old, so that the next collection of new objects does not walk over them.
    """
    former = os.environ.pop(FORMER, "")
    now, *others = gc.get_threshold()
    if former and now == MANY:
        _age()
        gc.set_threshold(int(former), *others)


def _age() -> None:
    """Move all objects to the oldest generation."""
    gc.freeze()
    gc.unfreeze()
