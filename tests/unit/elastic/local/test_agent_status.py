"""How the node agent tells a pod's state."""

from __future__ import annotations

from pod_builder import container, pod, run, seen

from elastic.local.agent.lifecycle import decide
from elastic.local.agent.runs import BackOff, Ending
from elastic.local.agent.status import status


def told(subject, at=100.0, **what):
    look = seen(**what)
    return status(subject, decide(subject, look, now=at, back_off=BackOff()), look, now=at)


def conditions(result):
    return {entry["type"]: entry["status"] for entry in result["conditions"]}


def test_a_running_pod_is_ready_and_has_its_address():
    result = told(pod(), runs={"main": run(started=60.0)})
    assert (result["phase"], result["podIP"], result["hostIP"]) == ("Running", "10.64.0.2", "127.0.0.1")
    assert conditions(result) == dict.fromkeys(
        ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"], "True"
    )
    main = result["containerStatuses"][0]
    assert main["state"] == {"running": {"startedAt": "1970-01-01T00:01:00Z"}}
    assert (main["ready"], main["started"], main["restartCount"]) == (True, True, 0)


def test_a_pod_that_initialises_names_what_is_incomplete():
    result = told(pod(init=(container("prepare"),)), runs={"prepare": run()})
    initialised = next(entry for entry in result["conditions"] if entry["type"] == "Initialized")
    assert (initialised["status"], initialised["reason"]) == ("False", "ContainersNotInitialized")
    assert initialised["message"] == "containers with incomplete status: [prepare]"
    assert result["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}


def test_a_failed_container_shows_code_message_and_reason():
    result = told(pod(), runs={"main": run(finished=5.0, code=3, message="out of data")})
    ended = result["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (3, "Error", "out of data")
    assert result["phase"] == "Failed"
    assert next(entry for entry in result["conditions"] if entry["type"] == "Ready")["reason"] == "PodFailed"


def test_a_container_in_back_off_says_how_long_and_what_happened_before():
    subject = pod(restartPolicy="Always")
    runs = [run(0, finished=1.0, code=1), run(1, started=90.0, finished=95.0, code=2)]
    main = told(subject, runs={"main": runs})["containerStatuses"][0]
    assert main["state"]["waiting"] == {
        "reason": "CrashLoopBackOff",
        "message": "back-off 10s restarting failed container=main pod=p_default(uid-p)",
    }
    assert main["lastState"]["terminated"]["exitCode"] == 2
    assert main["restartCount"] == 1


def test_a_running_container_remembers_how_it_ended_before():
    runs = [run(0, finished=1.0, code=137, reason="OOMKilled"), run(1, started=2.0)]
    main = told(pod(restartPolicy="Always"), runs={"main": runs})["containerStatuses"][0]
    assert main["lastState"]["terminated"]["reason"] == "OOMKilled"
    assert "running" in main["state"]


def test_the_problem_that_keeps_a_container_from_starting_is_in_its_status():
    waiting = told(pod(), problems={"main": 'secret "s" not found'})["containerStatuses"][0]["state"]["waiting"]
    assert waiting == {"reason": "CreateContainerConfigError", "message": 'secret "s" not found'}


def test_a_deadline_is_the_reason_of_the_pod():
    result = told(pod(), runs={"main": run(finished=99.0, code=143)}, ending=Ending(90.0, "DeadlineExceeded", "too long"))
    assert (result["phase"], result["reason"], result["message"]) == ("Failed", "DeadlineExceeded", "too long")


def test_a_condition_keeps_the_time_of_its_last_change():
    before = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}]}
    ready = next(entry for entry in told(pod(status=before), runs={"main": run()})["conditions"] if entry["type"] == "Ready")
    assert ready["lastTransitionTime"] == "2020-01-01T00:00:00Z"


def test_an_unmet_readiness_gate_keeps_a_pod_from_being_ready():
    subject = pod(readinessGates=[{"conditionType": "example.com/ready"}])
    state = conditions(told(subject, runs={"main": run()}))
    assert (state["Ready"], state["ContainersReady"]) == ("False", "True")
