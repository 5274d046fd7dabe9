import os
import signal
import threading

import pytest

from lightning_fl.engine.interrupt import InterruptGuard


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted_and_the_second_is_not_held_back(number, capsys):
    before = {each: signal.getsignal(each) for each in InterruptGuard.signals}
    with InterruptGuard() as guard:
        assert guard.signal_number is None
        os.kill(os.getpid(), number)
        assert guard.signal_number == number
        assert f"{signal.Signals(number).name}: finishing the round" in capsys.readouterr().err
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            os.kill(os.getpid(), number)
            signal.sigtimedwait([], 1)
    assert {each: signal.getsignal(each) for each in InterruptGuard.signals} == before


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
