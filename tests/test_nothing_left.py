"""The fixtures that start processes and see that none is left."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import processes
import psutil
import pytest
from processes import Process, nothing_left, reserved_port, run, start, succeed

pytestmark = pytest.mark.processes

#: Prints the number of a process that outlives it, in a session of its own and without its output.
ORPHAN = "setsid sh -c 'echo $$; exec sleep 100000 >&- 2>&-' &"


def test_what_outlives_its_parent_is_ended_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LIMIT", 0.0)
    numbers = []

    def leave_one() -> None:
        with nothing_left():
            monkeypatch.setattr(processes, "LIMIT", 900.0)
            ended = run("sh", "-c", ORPHAN)
            numbers.append(int(ended.out))
            assert psutil.pid_exists(numbers[0])
            monkeypatch.setattr(processes, "LIMIT", 0.0)

    with pytest.raises(AssertionError, match="left behind: .*sleep 100000"):
        leave_one()
    assert not psutil.pid_exists(numbers[0])


def test_what_runs_when_a_test_fails_is_ended_at_once() -> None:
    started = []

    def fail() -> None:
        with nothing_left():
            started.append(start("sleep", "100000"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not psutil.pid_exists(started[0].pid)


def test_the_first_that_fails_is_reported_though_others_wait() -> None:
    waiting, failing = start("sleep", "100000"), start("sh", "-c", "echo so far; echo no disk >&2; exit 3")
    with pytest.raises(AssertionError, match=r"process 1 ended with exit code 3\n(.|\n)*so far\n(.|\n)*no disk"):
        succeed(waiting, failing)
    waiting.send_signal(signal.SIGTERM)
    assert waiting.end().code == -signal.SIGTERM


def test_a_process_that_ends_before_it_prints_or_connects() -> None:
    with pytest.raises(AssertionError, match="it ended without printing 'ready'\n(.|\n)*steady"):
        start("echo", "steady").until_it_prints("ready")


def test_output_larger_than_a_pipe_holds_is_read() -> None:
    size = 1 << 20
    ended = run(sys.executable, "-c", f"import sys; sys.stderr.write('e' * {size}); print('o' * {size})")
    assert (ended.code, len(ended.out), len(ended.err)) == (0, size + 1, size)


def test_two_processes_may_listen_at_a_reserved_port_one_after_the_other() -> None:
    listen = "import socket, sys; socket.create_server(('', int(sys.argv[1]))).close()"
    with reserved_port() as port:
        for _ in range(2):
            assert run(sys.executable, "-c", listen, port).code == 0


@pytest.mark.slow
def test_a_warm_python_is_as_one_of_its_own(tmp_path: Path, start_warm: Callable[..., Process]) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nprint(__name__, sys.argv, os.environ['COLOUR'], os.getcwd())\nsys.exit('why')\n")
    ways = [start(sys.executable, script, "a b", environment={"COLOUR": "red"})]
    ways += [start_warm(script, "a b", environment={"COLOUR": "red"})]
    cold, warm = (process.end() for process in ways)
    assert cold == warm
    assert (warm.code, warm.err) == (1, "why\n")
    ways = [start(sys.executable, "-c", "import sys; 1 / len(sys.argv[1:])"), start_warm("-c", "raise SystemExit(7)")]
    assert [process.end().code for process in ways] == [1, 7]
    killed = start_warm("-c", "import signal; print('here', flush=True); signal.pause()")
    killed.until_it_prints("here")
    killed.send_signal(signal.SIGKILL)
    assert killed.end().code == -signal.SIGKILL
