"""Find worker processes that hang in torch's deadlock at the end of a gloo job: take two snapshots from /proc and compare them."""
