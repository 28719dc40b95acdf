"""Lives in which the simulation itself was wrong: it took for a defect what the product promises."""

from sim_storm import play


def test_a_pod_bound_to_a_node_that_goes_is_lost_to_the_cluster() -> None:
    """The signal taints nothing, so that replacements were bound to the same node, joined the world, and had to leave again."""
    play(21860)
