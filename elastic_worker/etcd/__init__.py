"""Let agents meet in an etcd, over its JSON gateway, without a server of ours: torchrun's rendezvous backend `elastic-etcd`.

From 3 workers to 2 in process: the controller writes the record `expected` (`elastic.etcd`). In each agent, the thread of `presence` sees
it by its watch (`mirror`) and calls `decide.decide`. `hosting.job_of` makes the engine's state from the records, and the engine goes one
step. `decide` turns the result into the next record `world`: `changes` writes the stages `hold`, `stop`, `form` and `run` one after the
other. The member whose turn it is writes the record, in one transaction. Each agent answers in its own record
(`change_messages.answered`).

An eviction: the agent that got SIGTERM ends its own record, and the others see it. The next member whose turn it is writes a world
without it.
"""
