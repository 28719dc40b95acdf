"""Decide the members of the world of one job, from events alone.

`step(job, event, now)` returns the next state and its effects. There is no clock, no I/O and no randomness here. The owner of the clock
and of the connections feeds the engine: rendezvous.server, each member of a job that meets in an etcd (elastic_worker.etcd.hosting), or a
test.

A step first applies the events to the state (`handlers`). Then `rounds.settle` decides once what follows, and `views.view` says what each
member shall see. A member always sees the full state, so a lost message does not matter.

A worker that must leave, because the job shrinks or its node will go: `handlers.expectations.expect` stores the controller's notice.
`choose.target` leaves the worker out of the next world if enough others stay, and `rounds._update_round` begins a round that drains. All
members come to the barrier (`Ready`), and `rounds._close_round` seals the next world. Nothing is charged. The worker waits at the barrier
until its pod is deleted.

An eviction is faster: SIGTERM makes the agent send `Leave`. `handlers.messages._leave` records a loss and drops the member, and
`rounds._must_form` begins the round at once. `restart_budget.charge_restarts` counts the loss as a disruption.

A loss: `handlers.messages.lose` only notes that the connection broke. A tick drops a member that does not come back in time
(`absence.without_absent`). The world is no longer whole (`rounds.is_whole`), so `rounds._must_form` begins the round without asking who
is wanted. `handlers.exit_reports` turns the controller's word about the pod's end into the cause that is charged.

From 3 workers to 2 in process: the round that drains begins as a change in process (`in_place.begin`). In stage `hold` each member
promises not to begin the step after its present one. `handlers.workers.hear` takes the promises, and `in_place._with_progress`
makes the highest promised step the one after which all stop (`stop`). They come to the barrier with living processes, and the same
`_close_round` seals the world. `in_place.sealed` asks the two to form it (`form`) and sends the third back without its processes
(`_without_leavers`). Once both say `Formed`, `in_place._with_formed` lets them train (`run`). A loss
meanwhile turns the change into an `abort`; if living processes cannot form a world, `in_place.fallen_back` lets all processes restart.
"""
