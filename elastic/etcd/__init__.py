"""The control plane's side of the rendezvous in an etcd: who should be in a job's world is written there, and who is in it is read."""
