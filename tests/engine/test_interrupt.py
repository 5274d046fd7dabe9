import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from processes import start

from lightning_fl.engine import interrupt
from lightning_fl.engine.interrupt import InterruptGuard, ends_on_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted_and_the_second_is_not_held_back(number, capfd):
    before = {each: signal.getsignal(each) for each in InterruptGuard.signals}
    with InterruptGuard() as guard:
        assert guard.signal_number is None
        os.kill(os.getpid(), number)
        assert guard.signal_number == number
        assert f"{signal.Signals(number).name}: finishing the round" in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt, match=signal.Signals(number).name):  # noqa: PT012
            os.kill(os.getpid(), number)
            signal.sigtimedwait([], 1)
    assert {each: signal.getsignal(each) for each in InterruptGuard.signals} == before


def test_a_signal_that_a_guard_has_answered_ends_nothing_later(monkeypatch):
    """The thread that sees signals may come to one of them when the guard of the rounds is gone."""
    held = threading.Event()
    watch = interrupt._watch

    def late(reading):
        held.wait()
        watch(reading)

    monkeypatch.setattr(interrupt, "_watch", late)
    with ends_on_signals():
        with interrupt.signals_of_a_run():
            with InterruptGuard() as guard:
                os.kill(os.getpid(), signal.SIGTERM)
                assert guard.signal_number == signal.SIGTERM
            held.set()
        assert interrupt._THIS.end is None


def test_handlers_are_put_back_after_an_error():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ValueError, match="ours"), InterruptGuard():  # noqa: PT012
        assert signal.getsignal(signal.SIGTERM) != before
        raise ValueError("ours")
    assert signal.getsignal(signal.SIGTERM) == before


def test_outside_the_main_thread_signals_are_left_alone():
    before = signal.getsignal(signal.SIGINT)
    inside = []

    def run():
        with InterruptGuard() as guard:
            inside.append((signal.getsignal(signal.SIGINT), guard.signal_number))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert inside == [(before, None)]


def test_nothing_is_raised_inside_of_a_queue():
    inside: list[str] = []
    code = "def put():\n    kill(getpid(), 15)\n    sleep(0.1)\n    inside.append('whole')\n"
    queue = {"__name__": "queue", "kill": os.kill, "getpid": os.getpid, "sleep": time.sleep, "inside": inside}
    exec(code, queue)
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"), ends_on_signals():  # noqa: PT012
        queue["put"]()
        time.sleep(10)
    assert inside == ["whole"]


def test_what_is_around_a_command_does_not_delay_it():
    code = "def work(run):\n    run()\n"
    multiprocessing = {"__name__": "multiprocessing.process"}
    exec(code, multiprocessing)

    def command():
        with ends_on_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        multiprocessing["work"](command)
    assert time.monotonic() - began < 0.9  # after a second it is raised anywhere


def test_what_is_raised_while_an_object_is_taken_apart_is_raised_again(capfd):
    class Noisy:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt, match="SIGTERM"), ends_on_signals():  # noqa: PT012
        noisy = Noisy()
        del noisy
        time.sleep(10)
    assert capfd.readouterr().err == ""


def test_handlers_of_the_program_are_left_alone():
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        own = signal.getsignal(signal.SIGTERM)
        with ends_on_signals():
            assert signal.getsignal(signal.SIGTERM) is own
            assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


#: What waits in C++, where Python calls no handler, and has a child that ends with it.
WAITS = """
import os, signal, sys
from datetime import timedelta
from torch.distributed import HashStore
from lightning_fl.engine import interrupt
from lightning_fl.strategies.fork_launcher import ForkedProcess
pid = os.fork()
if not pid:
    signal.alarm(60)
    signal.pause()
interrupt._LAST_RESORT = 0.3
interrupt.ends_with_this_process(ForkedProcess(pid))
with interrupt.ends_on_signals(), interrupt.signals_of_a_run(), interrupt.InterruptGuard():
    # as a queue: should a signal come before it waits, nothing is raised either
    names = {"__name__": "queue", "wait": HashStore().wait, "limit": timedelta(seconds=600)}
    exec("print('here', flush=True); wait(['never'], limit)", names)
"""


@pytest.mark.processes
def test_a_process_that_waits_in_other_code_ends_all_the_same(start_warm):
    process = start_warm("-c", WAITS)
    process.until_it_prints("here")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    ended = process.end()
    assert ended.code in (128 + signal.SIGINT, 128 + signal.SIGTERM)  # which of the two Python hears of first is open
    assert ended.err.endswith("interrupted\n")
    assert "Traceback" not in ended.err


@pytest.mark.processes
def test_a_signal_while_modules_are_imported_is_no_traceback(tmp_path: Path):
    Path(tmp_path / "slow.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(600)\n")
    code = "import sys; sys.modules.pop('lightning_fl.cli', None); import lightning_fl.__main__ as program\n"
    code += f"sys.path.insert(0, {str(tmp_path)!r}); program.ends_at_once(); import slow"
    process = start(sys.executable, "-c", code)
    process.until_it_prints("importing")
    process.send_signal(signal.SIGINT)
    ended = process.end()
    assert (ended.code, ended.err) == (130, "interrupted\n")
