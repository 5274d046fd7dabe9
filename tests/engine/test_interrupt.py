import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from processes import start

from lightning_fl.engine.interrupt import InterruptGuard, ends_on_signals

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", _SIGNALS)
def test_the_first_signal_is_noted_and_handlers_are_put_back(number, capfd):
    before = {each: signal.getsignal(each) for each in _SIGNALS}
    with InterruptGuard("finishing the round") as guard:
        assert guard.signal_number is None
        os.kill(os.getpid(), number)
        assert guard.signal_number == number
        assert f"{signal.Signals(number).name}: finishing the round" in capfd.readouterr().err
    with pytest.raises(ValueError, match="ours"), InterruptGuard():
        raise ValueError("ours")
    assert {each: signal.getsignal(each) for each in _SIGNALS} == before


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


def test_handlers_of_the_program_are_left_alone():
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    interrupted = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process may ignore it
    try:
        own = signal.getsignal(signal.SIGTERM)
        with ends_on_signals():
            assert signal.getsignal(signal.SIGTERM) is own
            assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, interrupted)


#: A run with a child, which ends with it, and with what a loader's worker does where it is.
PROGRAM = """
import multiprocessing, os, signal, sys, time
from datetime import timedelta
from pathlib import Path
from torch.distributed import HashStore
from lightning_fl.engine.interrupt import InterruptGuard, end_with_this_process, ends_on_signals, signals_of_a_run
from lightning_fl.strategies.fork_launcher import ForkedProcess

def pause():
    signal.alarm(60)
    while True:
        signal.pause()

with ends_on_signals():
    worker = multiprocessing.get_context("fork").Process(target=pause)
    worker.start()
    fork = ForkedProcess()
    if not fork.pid:
        pause()
    end_with_this_process([fork])
    with signals_of_a_run(), InterruptGuard("noted", Path("last.ckpt")):
        BODY
"""
WAITS = {
    "in Python": "print('here', flush=True); time.sleep(60)",
    "in C++, where Python calls no handler": "print('here', flush=True);"
    " HashStore().wait(['x'], timedelta(seconds=60))",
    "where a signal wakes something else": "import socket; here, there = socket.socketpair(); there.setblocking(False);"
    " signal.set_wakeup_fd(there.fileno()); print('here', flush=True); time.sleep(60)",
    "while an object is taken apart": "Noisy = type('Noisy', (), {'__del__': lambda _: (print('here', flush=True),"
    " time.sleep(60))}); Noisy()",
    "while the folder for temporary files is looked for": "import tempfile, torch_geometric; tempfile.tempdir = None;"
    " tempfile._get_default_tempdir = lambda: (print('here', flush=True), time.sleep(60)); tempfile.gettempdir()",
}


@pytest.mark.processes
@pytest.mark.parametrize("body", WAITS.values(), ids=WAITS.keys())
@pytest.mark.parametrize("kept", [True, False])
def test_the_second_signal_ends_the_process_and_its_children_at_once(kept, body, start_warm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if kept:
        Path("last.ckpt").touch()
    process = start_warm("-c", PROGRAM.replace("BODY", body))
    process.until_it_prints("here")
    process.send_signal(signal.SIGTERM)
    process.until_it_says("noted")
    process.send_signal(signal.SIGTERM)
    ended = process.end()  # its children have its output as well
    assert (ended.code, ended.out.strip()) == (128 + signal.SIGTERM, "here")
    assert ended.err == f"SIGTERM: noted\ninterrupted{': resume with --ckpt_path last.ckpt' if kept else ''}\n"


@pytest.mark.processes
def test_a_second_signal_while_the_first_is_handled_is_not_lost(start_warm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    body = "real, calls = signal.set_wakeup_fd, [0]; signal.set_wakeup_fd = lambda *fd, **how: (real(*fd, **how), calls"
    body += " and signal.raise_signal(calls.pop() or signal.SIGTERM))[0]; print('here', flush=True); time.sleep(60)"
    process = start_warm("-c", PROGRAM.replace("BODY", body))
    process.until_it_prints("here")
    process.send_signal(signal.SIGTERM)
    ended = process.end()
    assert (ended.code, ended.err) == (128 + signal.SIGTERM, "SIGTERM: noted\ninterrupted\n")


@pytest.mark.processes
def test_a_signal_while_python_ends_is_no_traceback():
    code = "import atexit, sys, time; atexit.register(lambda: (print('ending', flush=True), time.sleep(60)))\n"
    code += "import lightning_fl.__main__ as program; sys.argv[1:] = ['--version']; program.main()"
    process = start(sys.executable, "-c", code)
    process.until_it_prints("ending")
    process.send_signal(signal.SIGINT)
    ended = process.end()
    assert (ended.code, ended.err) == (-signal.SIGINT, "")


@pytest.mark.processes
def test_a_signal_while_modules_are_imported_is_no_traceback(start_warm, tmp_path, monkeypatch):
    (tmp_path / "slow.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    monkeypatch.chdir(tmp_path)
    code = "import sys; sys.modules['lightning_fl.cli'] = None; sys.path.insert(0, ''); sys.meta_path.insert(0, type("
    code += "'Slow', (), {'find_spec': lambda self, name, *_: name == 'lightning_fl.cli' and __import__('slow') or None"
    code += "})()); del sys.modules['lightning_fl.cli']; import lightning_fl.__main__ as program; program.main()"
    process = start_warm("-c", code)
    process.until_it_prints("importing")
    process.send_signal(signal.SIGINT)
    ended = process.end()
    assert (ended.code, ended.err) == (130, "interrupted\n")
