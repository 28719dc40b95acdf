"""The words about what a job waits for end the newest condition's message, and status.elastic.waiting says which words these are."""

from datetime import timedelta

from job_builders import NOW
from msgspec.structs import replace

from elastic.api.job import ElasticStatus, JobStatus
from elastic.api.words import ConditionType
from elastic_training.controller.deciding.lifecycle.conditions import with_condition, with_words_at_end, without_former_words

PODS, QUOTA = " It waits 4 s to create pods again.", " It waits for a quota. It waits for the API server."
LATER = NOW + timedelta(seconds=9)


def restarting(message: str) -> JobStatus:
    return with_condition(JobStatus(), ConditionType.RESTARTING, reason="JobRestarting", message=message, now=NOW)


def message(status: JobStatus) -> str:
    return status.conditions[-1].message


def test_words_take_the_place_of_the_former_ones_and_go_again() -> None:
    status = with_words_at_end(restarting("A pod failed."), PODS, now=NOW)
    assert message(status) == "A pod failed." + PODS
    assert status.elastic == ElasticStatus(waiting=PODS)
    status = with_words_at_end(status, QUOTA, now=NOW)
    assert message(status) == "A pod failed." + QUOTA
    status = with_words_at_end(status, "", now=NOW)
    assert message(status) == "A pod failed."
    assert status.elastic == ElasticStatus()


def test_a_message_that_quotes_such_words_keeps_them() -> None:
    """Everything from ` It waits ` on was cut off, although a program had said it."""
    quoted = "A pod failed: It waits for Godot, said the program. It waits still."
    status = replace(restarting(quoted + PODS), elastic=ElasticStatus(waiting=PODS))
    assert message(with_words_at_end(status, QUOTA, now=NOW)) == quoted + QUOTA


def test_an_unchanged_condition_keeps_its_time() -> None:
    status = with_words_at_end(restarting("A pod failed."), PODS, now=NOW)
    assert with_words_at_end(status, PODS, now=LATER) == status


def test_words_of_the_former_release_are_found_without_the_field() -> None:
    status = replace(restarting("A pod failed." + PODS), elastic=ElasticStatus(backend="elastic"))
    assert message(with_words_at_end(status, "", now=NOW)) == "A pod failed."
    rolled_back = replace(status, elastic=ElasticStatus(waiting=QUOTA))
    assert message(with_words_at_end(rolled_back, PODS, now=NOW)) == "A pod failed." + PODS


def test_a_former_condition_loses_the_words() -> None:
    status = with_words_at_end(restarting("A pod failed."), PODS, now=NOW)
    status = with_condition(status, ConditionType.CREATED, reason="JobCreated", message="It is created.", now=NOW)
    assert [c.message for c in without_former_words(status, now=LATER).conditions] == ["A pod failed.", "It is created."]


def test_a_finished_job_waits_for_nothing() -> None:
    status = with_words_at_end(restarting("A pod failed."), PODS, now=NOW)
    status = with_condition(status, ConditionType.SUSPENDED, reason="JobSuspended", message="It is suspended.", now=LATER)
    assert [c.message for c in status.conditions] == ["A pod failed.", "It is suspended."]
    assert status.elastic == ElasticStatus()
