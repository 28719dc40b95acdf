"""Lives in which the simulation itself was wrong: it took for a defect what the product promises."""

from sim_scene import Options
from sim_storm import play


def test_a_group_that_failed_again_and_again_is_waited_for_until_its_pause_is_over() -> None:
    """Its last failure came when the programs ended; the pause was longer than the quiet after which everything must be right."""
    play(21604, Options(twins=True))


def test_the_autoscaler_may_change_its_mind_while_a_right_world_is_looked_at() -> None:
    """The work of a job with a deadline was done; the controller copied what the autoscaler said of it."""
    play(21854)


def test_a_pod_bound_to_a_node_that_goes_is_lost_to_the_cluster() -> None:
    """The signal taints nothing, so that replacements were bound to the same node, joined the world, and had to leave again."""
    play(21860)


def test_a_worker_may_go_just_before_its_node_is_lost_also_where_fewer_than_the_minimum_stay() -> None:
    """Its replacement could not be made: a pod of the former job still had the name."""
    play(20478, Options(twins=True))
