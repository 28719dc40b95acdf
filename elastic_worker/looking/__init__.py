"""Look at training processes from outside, and say what each of them does.

sight      takes a sight of a worker and its child processes from /proc
dumping    gets their Python stacks: by the signal of elastic_worker.stack_signal, or with py-spy
stacks     reads the text of the stacks
describing names in words what a sight shows
watching   compares the sights of one worker, and counts for how long they are equal
sockets    asks the kernel for the bytes of TCP connections
stopped    finds workers that SIGSTOP has stopped

The agent looks while the rendezvous server asks it to, and `python -m elastic_worker.stacks` looks once.
"""
