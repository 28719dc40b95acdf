"""Python's garbage collector while modules are imported.

It walks again and again over what they have made and frees next to nothing: a quarter of the time that torch takes to import.

A process that imports for others pauses it. A program that imports for itself begins with it postponed, until it says `resume`.
"""

import contextlib
import gc
import os
import typing

MANY = 1000000
"""So many objects more than at the last collection begin the next; importing torch makes half as many, and Python's own figure is 700 or
2000. It bounds what a program can fill with objects that only a collection frees."""
FORMER = "ELASTIC_GC_THRESHOLD"


@contextlib.contextmanager
def paused() -> typing.Iterator[None]:
    """Collect nothing in this block. What is there at its end counts as old."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        _age()
        if was_enabled:
            gc.enable()


def postpone() -> None:
    """Collect rarely. What was set before is kept in the environment, because the program may load this module anew."""
    former, *others = gc.get_threshold()
    os.environ[FORMER] = str(former)
    gc.set_threshold(MANY, *others)


def resume() -> None:
    """Collect as before `postpone`, unless the program has set something of its own meanwhile.

    What is there now counts as old, so that the next collection of new objects does not walk over it.
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
