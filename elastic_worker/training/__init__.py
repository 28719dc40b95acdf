"""Train through changes of the world: workers come and go, and the processes that stay keep running.

run           the loop that programs write, and its steps
worlds        from one world to the next: leave, form, bring the state level
control       the thread that talks with the agent
connections   breaks off a blocked collective
group         process group of a world
whole         the whole model on each worker (DDP)
fsdp          shards inside a fixed group, and replicas that come and go (FSDP2); `shards` is their state, `registry` keeps their groups
exchange      the store over which members exchange their addresses
transfer      the state from a donor to the workers that lack it; `state` takes it apart
boundary      puts back what a broken step has changed
environment   a single process, torchrun, or worlds that change
step          one step, as a context
mistakes      errors in a program that would otherwise train something else without a message
sampler       which samples of which step, for every size of the world
data          loads the samples of this rank
saves         saves the state while training goes on; `save_news` tells the agent if that fails
sigterm       ends a worker between two steps
rates         learning-rate rules for a global batch that follows the size
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from elastic_worker.training.data import Loader as Loader
    from elastic_worker.training.fsdp import Pod as Pod
    from elastic_worker.training.run import Run as Run
    from elastic_worker.training.sampler import Sampler as Sampler
    from elastic_worker.training.step import Step as Step

PLACES = {"Run": "run", "Step": "step", "Pod": "fsdp", "Loader": "data", "Sampler": "sampler"}


def __getattr__(name: str) -> typing.Any:
    """Import a name at its first use, because most modules import torch and `control` must work without it."""
    if name in PLACES:
        return getattr(importlib.import_module("elastic_worker.training." + PLACES[name]), name)
    raise AttributeError("module {!r} has no attribute {!r}".format(__name__, name))
