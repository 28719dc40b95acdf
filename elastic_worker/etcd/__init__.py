"""torchrun's rendezvous backend `elastic-etcd`: agents meet in an etcd, over its JSON gateway, without any server of ours."""
