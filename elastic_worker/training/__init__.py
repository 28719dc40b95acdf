"""Trains through changes of the world: workers come and go, and the processes that stay keep running.

sampler   which samples of which step, for every size of the world
data      loads the samples of this rank
saves     saves the state while training goes on
rates     learning-rate rules for a global batch that follows the size
fsdp      shards inside a fixed group, and replicas that come and go
"""
