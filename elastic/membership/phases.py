"""Name the states of a job's world, for everybody who reads about worlds."""

from elastic_training.rendezvous.engine.words import WorldPhase as WorldPhase
