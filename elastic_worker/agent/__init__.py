"""Run inside torchrun's agent: wait at the barrier, enter worlds, watch the worker processes, and report to the rendezvous server.

torchrun calls `handler.ElasticHandler`, and three kinds of threads work next to it. `presence` keeps the connection to the server and the
newest view. `in_process` serves the workers' door, at which a script that uses the library asks before each step. `looks` and
`worker_stderr` watch what workers do and print. They share one lock, the presence's, and one fact: the view, which is the full state that
the server wants this member to see.

The way through one world: `next_rendezvous` opens a store, says `Ready`, and waits until a view names a generation that is new. Rank 0's
store becomes the world's. `workers.LocalWorkers` then follows the processes that torchrun starts. `num_nodes_waiting`, which torchrun
calls about once a second, returns 1 if the view asks for another round. torchrun then stops the processes and calls `next_rendezvous`
again.

An eviction: SIGTERM reaches the agent. `handler.ElasticHandler._on_signal` sends `Leave` first, so the server need not wait for the
connection to break. torchrun ends the workers within their grace. The agents of the other workers see a view that asks for a round, and
go the way above.

From 3 workers to 2 in process: the view carries a `Change`, and `num_nodes_waiting` stays 0, so torchrun notices nothing.
`change.LocalChange` turns the stages of the change into messages to the workers, and their answers into messages to the server. The same
processes form the next world, with other ranks. If a stage cannot be met, the view asks for a round, and the processes restart.

A worker's end: `children` learns it from the kernel, `first_failure` picks the worker that failed first, and `last_words` writes the
reason into the container's termination message, which the controller reads.
"""
