"""Runs horovodrun in the launcher of an elastic MPIJob with the rendezvous server's list of hosts."""
