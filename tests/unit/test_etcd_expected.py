"""What the controller expects of a job that meets in an etcd: a member that only may have to go is one until its replacement runs."""

from elastic.etcd.observed import expected_of
from elastic.membership.wire import Expectation, Leaving

PREPARED = Leaving(member="w1", cause="disruption", when_replaced=True)
DOOMED = Leaving(member="w0", cause="disruption")


def test_a_member_that_may_have_to_go_stays_until_all_replacements_run() -> None:
    waits = expected_of(Expectation(members=("w2", "w3"), pending=("w3",), leaving=(DOOMED, PREPARED), max=4))
    assert waits.members == ("w2", "w3", "w1")
    assert [leaving.member for leaving in waits.leaving] == ["w0"]
    runs = expected_of(Expectation(members=("w2", "w3"), leaving=(DOOMED, PREPARED), max=4))
    assert runs.members == ("w2", "w3")
    assert [leaving.member for leaving in runs.leaving] == ["w0", "w1"]
