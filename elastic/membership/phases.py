"""Name the states of a job's world, for everybody who reads about worlds."""

from rendezvous.engine.words import WorldPhase as WorldPhase
