"""A process shows its Python stacks when a signal asks for them, and is otherwise as it was."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from elastic_worker import stack_signal
from elastic_worker.looking import dumping

STACKS, TICKS = signal.SIGRTMIN + 5, signal.SIGRTMIN + 6
PRELUDE = """
import faulthandler, json, os, re, signal, sys, threading, time
from elastic_worker import stack_signal
def files():
    links = {int(n): '/proc/self/fd/' + n for n in os.listdir('/proc/self/fd')}
    return {n: os.readlink(link) for n, link in links.items() if os.path.exists(link) and 'memfd:' in os.readlink(link)}
def caught():
    return sorted(stack_signal.numbers(open('/proc/self/status').read(), 'SigCgt') & set(range(34, 65)))
"""


def facts_of(program: str, **environment: str) -> tuple[object, str]:
    """Run a program that prints JSON; return it and the program's standard error."""
    own = {name: value for name, value in os.environ.items() if name != stack_signal.VARIABLE and name != "RANK"}
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(program)]
    ended = subprocess.run(command, env=own | environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout), ended.stderr


REGISTER = """
stack_signal.register(os.environ)
stack_signal.register(os.environ)
print(json.dumps([sorted(files().values()), min(files(), default=0), caught()]))
"""


def test_a_process_registers_once_and_keeps_low_descriptors_free() -> None:
    names = [f"/memfd:elastic-stacks-{STACKS} (deleted)", f"/memfd:elastic-ticks-{TICKS} (deleted)"]
    assert facts_of(REGISTER) == ([names, 100, [STACKS, TICKS]], "")


def test_another_signal_can_be_chosen() -> None:
    names = ["/memfd:elastic-stacks-50 (deleted)", "/memfd:elastic-ticks-51 (deleted)"]
    assert facts_of(REGISTER, ELASTIC_STACK_SIGNAL="50") == ([names, 100, [50, 51]], "")


def test_it_can_be_switched_off() -> None:
    assert facts_of(REGISTER, ELASTIC_STACK_SIGNAL="off") == ([[], 0, []], "")


@pytest.mark.parametrize("value", ["forty", str(int(signal.SIGUSR1)), str(int(signal.SIGUSR2)), "9", "65", "00391", "-1"])
def test_a_bad_value_gives_one_warning_that_names_the_variable(value: str) -> None:
    (_, _, caught), error = facts_of(REGISTER, ELASTIC_STACK_SIGNAL=value)  # type: ignore[misc]
    assert caught == []
    assert error.count("\n") == 1
    assert f"ELASTIC_STACK_SIGNAL is '{value}'" in error
    assert "or off" in error


def test_only_the_first_rank_warns() -> None:
    assert facts_of(REGISTER, ELASTIC_STACK_SIGNAL="forty", RANK="1")[1] == ""


@pytest.mark.parametrize("own", ["lambda *_: None", "signal.SIG_IGN"])
def test_a_program_that_handles_or_ignores_the_signal_keeps_it(own: str) -> None:
    program = f"signal.signal({STACKS}, {own})\n" + textwrap.dedent(REGISTER)
    expected = [] if "IGN" in own else [STACKS]
    assert facts_of(program) == ([[], 0, expected], "")


def test_nothing_is_registered_without_files_in_memory() -> None:
    assert facts_of("del os.memfd_create\n" + textwrap.dedent(REGISTER)) == ([[], 0, []], "")


def test_few_descriptors_are_no_error() -> None:
    program = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n" + textwrap.dedent(REGISTER)
    assert facts_of(program) == ([[], 0, []], "")


def test_a_forked_child_shows_its_stacks_and_a_new_program_has_no_handler() -> None:
    program = """
    stack_signal.register(os.environ)
    pid = os.fork()
    if not pid:
        print(json.dumps([caught(), len(files())]), flush=True)
        os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])
    os.waitpid(pid, 0)
    """
    own = {name: value for name, value in os.environ.items() if name != stack_signal.VARIABLE}
    after = PRELUDE + "print(json.dumps([caught(), len(files())]))"
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(program), after]
    ended = subprocess.run(command, env=own, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == f"[[{int(STACKS)}, {int(TICKS)}], 2]\n[[], 0]\n"


STANDING = """
stack_signal.register(os.environ)
def stay():
    print('stays', flush=True)
    {stay}
stay()
"""


def standing(stay: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + STANDING.format(stay=stay)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "stays\n"
    return process


def began_of(process: subprocess.Popen[str]) -> int:
    from elastic_worker.gloo_deadlock import procfs

    return procfs.stat(process.pid).began


def test_stacks_of_all_threads_are_read_again_and_again() -> None:
    process = standing(
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start(); print('ready', flush=True); sys.stdin.read()"
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(20):
            found = dumping.of_process(process.pid, began_of(process))
            assert found is not None
            assert found.main is not None
            assert [frame.function for frame in found.main] == ["stay", "<module>"]
            assert len(found.others) == 1
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "stay",
    [
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); time.sleep(600)",
        "os.closerange(100, 120); print('closed', flush=True); time.sleep(600)",
        f"faulthandler.unregister({int(STACKS)}); print('unregistered', flush=True); time.sleep(600)",
    ],
)
def test_a_process_that_cannot_answer_is_not_asked(stay: str) -> None:
    """The default action of the signal would kill it."""
    process = standing(stay.replace("time.sleep(600)", "print('ready', flush=True); sys.stdin.read()"))
    try:
        assert process.stdout is not None
        while process.stdout.readline() != "ready\n":
            pass
        assert dumping.of_process(process.pid, began_of(process)) is None
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


def test_a_later_process_with_the_same_number_is_not_asked() -> None:
    process = standing("sys.stdin.read()")
    try:
        assert dumping.of_process(process.pid, began_of(process) - 1) is None
    finally:
        process.kill()
        process.communicate()


def test_a_process_that_gets_on_says_so_and_an_endless_loop_in_c_does_not() -> None:
    """Regular expressions run handlers of signals too, so a handler alone would prove nothing."""
    busy = standing("\n    while True: frames = 1")
    looping = standing("re.match('(a+)+$', 'a' * 64 + 'b')")
    try:
        deadline = time.monotonic() + 60
        while dumping.ticks(busy.pid, began_of(busy)) in (None, 0, 1, 2):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        answers: list[int | None] = []
        while len(answers) < 20 or len(set(answers[-20:])) > 1:  # it may answer until it is inside of the loop
            assert time.monotonic() < deadline, answers
            answers.append(dumping.ticks(looping.pid, began_of(looping)))
            time.sleep(0.005)
    finally:
        for process in (busy, looping):
            process.kill()
            process.communicate()
