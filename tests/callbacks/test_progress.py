import math
import os
import pty
import re
import sys
import threading
from types import SimpleNamespace

import pytest
from hooks import StopAfter

from lightning_fl.callbacks import Callback
from lightning_fl.callbacks.progress import ProgressDisplay, displayed_metric
from lightning_fl.core.errors import TrainingError
from lightning_fl.core.metrics import MetricSummary
from lightning_fl.data.source import STAND_IN_LABEL


class Terminal:
    """A pseudo-terminal in the place of standard output; to be made in the test itself (pytest swaps the stream)."""

    def __init__(self, monkeypatch):
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "120")
        self._master, slave = pty.openpty()
        self.stream = os.fdopen(slave, "w", encoding="utf-8")
        monkeypatch.setattr(sys, "stdout", self.stream)
        self._parts = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        while True:
            try:
                part = os.read(self._master, 4096)
            except OSError:  # the other end is closed
                return
            if not part:
                return
            self._parts.append(part)

    def close(self) -> str:
        """Everything that was written."""
        self.stream.close()
        self._reader.join()
        os.close(self._master)
        return b"".join(self._parts).decode()


def rounds_shown(output: str) -> list[int]:
    return [int(number) for number in re.findall(r"^round (\d+)/", output, flags=re.MULTILINE)]


class TestLeadingMetric:
    metrics = dict.fromkeys(("val/rmse", "val/loss", "val/r2"), MetricSummary(1.0, 1.0, 0.0, {0: 1.0}, False))

    @pytest.mark.parametrize(
        ("monitor", "expected"),
        [(None, "val/loss"), ("val/r2", "val/r2"), ("val/rmse/worst", "val/rmse"), ("absent", "val/loss")],
    )
    def test_monitored_then_loss(self, monitor, expected):
        assert displayed_metric(self.metrics, monitor) == expected

    def test_without_a_loss_the_first(self):
        assert displayed_metric({"b": self.metrics["val/r2"], "a": self.metrics["val/r2"]}) == "b"
        assert displayed_metric({}) is None


class TestPlainLines:
    def test_a_line_says_what_was_measured(self, make_trainer, line_clients, line_module, capsys):
        slopes, module = [1.0, 2.0, -3.0], line_module()
        make_trainer(ProgressDisplay(), max_rounds=2).fit(module, line_clients(slopes))
        output = capsys.readouterr().out
        # Every client starts a round at w and takes one step of 0.01 along the gradient 2 E[x^2] (w - slope).
        mean_slope, square = sum(slopes) / 3, 7.5
        first = 0.01 * 2 * square * mean_slope
        second = first - 0.01 * 2 * square * (first - mean_slope)
        losses = [square * (first - slope) ** 2 for slope in slopes]
        errors = [math.sqrt(square) * abs(second - slope) for slope in slopes]
        last = output.splitlines()[-2]
        assert last.startswith("round 2/2 | clients 3/3 | ")
        assert f"train/loss {sum(losses) / 3:.4g} (worst {max(losses):.4g}: client_2)" in last
        assert f"val/rmse {sum(errors) / 3:.4g} (worst {max(errors):.4g}: client_2)" in last
        assert f"val/extra {2 * sum(errors) / 3:.4g} (worst" in last
        assert re.search(r"\d:\d\d:\d\d elapsed \| 0:00:00 left$", last)
        assert output.splitlines()[-1].startswith("finished 2 rounds in ")

    def test_no_control_codes(self, make_trainer, line_clients, line_module, capsys):
        make_trainer(ProgressDisplay(), max_rounds=2).fit(line_module(), line_clients([1.0, 2.0], "stand-in"))
        assert "\x1b" not in capsys.readouterr().out

    @pytest.mark.parametrize(("source", "labels"), [("stand-in", 1), ("measured", 0)])
    def test_stand_in_data_are_announced_first(self, make_trainer, line_clients, line_module, capsys, source, labels):
        make_trainer(ProgressDisplay(), max_rounds=1).fit(line_module(), line_clients([1.0, 2.0], source))
        output = capsys.readouterr().out
        assert output.count(STAND_IN_LABEL) == labels
        assert output.startswith(STAND_IN_LABEL) == bool(labels)
        assert f"LineModule by FedAvg on 2 clients, data: {source}" in output

    @pytest.mark.slow
    def test_a_hundredth_of_the_rounds(self, make_trainer, line_clients, line_module, capsys, monkeypatch):
        monkeypatch.setattr("lightning_fl.callbacks.progress.time", SimpleNamespace(monotonic=lambda: 0.0))
        display = ProgressDisplay()
        trainer = make_trainer(display, max_rounds=300, check_val_every_n_rounds=0, enable_checkpointing=False)
        trainer.fit(line_module(), line_clients([1.0]))
        shown = rounds_shown(capsys.readouterr().out)
        assert shown == [*range(1, 300, 3), 300]

    def test_ten_seconds(self, make_trainer, line_clients, line_module, capsys, monkeypatch):
        clock = iter(range(0, 10_000, 6))  # six seconds between two looks at the clock
        monkeypatch.setattr("lightning_fl.callbacks.progress.time", SimpleNamespace(monotonic=lambda: next(clock)))
        trainer = make_trainer(
            ProgressDisplay(), StopAfter(6), max_rounds=1000, check_val_every_n_rounds=0, enable_checkpointing=False
        )
        trainer.fit(line_module(), line_clients([1.0]))
        assert rounds_shown(capsys.readouterr().out) == [1, 3, 5]

    def test_every_n_rounds(self, make_trainer, line_clients, line_module, capsys):
        make_trainer(ProgressDisplay(every_n_rounds=4), max_rounds=10).fit(line_module(), line_clients([1.0]))
        assert rounds_shown(capsys.readouterr().out) == [1, 4, 8, 10]

    def test_resume(self, make_trainer, line_clients, line_module, capsys):
        first = make_trainer(ProgressDisplay(), max_rounds=2)
        first.fit(line_module(), line_clients([1.0]))
        capsys.readouterr()
        trainer = make_trainer(ProgressDisplay(), max_rounds=4)
        trainer.fit(line_module(), line_clients([1.0]), ckpt_path=f"{first.log_dir}/checkpoints/last.ckpt")
        output = capsys.readouterr().out
        assert output.splitlines()[0].endswith("from round 2")
        assert rounds_shown(output) == [3, 4]

    def test_a_stop_before_the_end_is_named(self, make_trainer, line_clients, line_module, capsys):
        trainer = make_trainer(ProgressDisplay(), StopAfter(2), max_rounds=5)
        trainer.fit(line_module(), line_clients([1.0]))
        assert capsys.readouterr().out.splitlines()[-1].startswith("stopped after round 2/5, ")

    def test_a_name_that_the_encoding_lacks(self, make_trainer, line_clients, line_module, monkeypatch, tmp_path):
        data = line_clients([1.0, 2.0])
        data.client_names = lambda: ["Gießen", "Łódź"]
        with open(tmp_path / "out.txt", "w", encoding="ascii") as stream, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            make_trainer(ProgressDisplay(), max_rounds=1).fit(line_module(), data)
        assert ": \\u0141\\xf3d\\u017a)" in (tmp_path / "out.txt").read_text()

    def test_the_remaining_time_goes_by_whole_rounds(self, make_trainer, line_clients, line_module, monkeypatch):
        now = SimpleNamespace(seconds=0.0)
        monkeypatch.setattr("lightning_fl.callbacks.progress.time", SimpleNamespace(monotonic=lambda: now.seconds))
        left, display = [], ProgressDisplay()

        class Slow(Callback):
            def on_client_end(self, trainer, client):
                now.seconds += 10
                left.append(display._times(trainer, now.seconds))

        make_trainer(display, Slow(), max_rounds=3).fit(line_module(), line_clients([1.0, 2.0]))
        assert [one for _, one in left] == ["?", "?", "0:00:40", "0:00:40", "0:00:20", "0:00:20"]
        assert [one for one, _ in left] == [f"0:0{seconds // 60}:{seconds % 60:02}" for seconds in range(10, 70, 10)]

    def test_other_ranks_are_silent(self, capsys):
        display, trainer = ProgressDisplay(), SimpleNamespace(is_global_zero=False)
        display.on_round_start(trainer)
        display.on_client_start(trainer, 0)
        display.on_client_end(trainer, 0)
        display.on_round_end(trainer)
        display.on_fit_end(trainer)
        assert capsys.readouterr().out == ""


class TestTerminal:
    def test_display(self, make_trainer, line_clients, line_module, monkeypatch):
        terminal = Terminal(monkeypatch)
        trainer = make_trainer(ProgressDisplay(), max_rounds=3)
        trainer.fit(line_module(), line_clients([1.0, 5.0], "stand-in"))
        assert sys.stdout is terminal.stream
        output = terminal.close()
        assert f"\x1b[1;30;43m {STAND_IN_LABEL} \x1b[0m" in output  # bold black on yellow
        worst = trainer.metrics["val"]["val/rmse"].worst
        last = output[output.rindex("round 3/3") :]
        assert f"(worst {worst:.4g}: client_1)" in last
        assert "0:00:00 left" in last
        assert "finished 3 rounds" in last
        assert "round 1: 0 clients done" in output

    def test_a_stop_before_the_end(self, make_trainer, line_clients, line_module, monkeypatch):
        terminal = Terminal(monkeypatch)
        make_trainer(ProgressDisplay(), StopAfter(2), max_rounds=5).fit(line_module(), line_clients([1.0]))
        output = terminal.close()
        last = output[output.rindex("round 2/5 \x1b") :]
        assert "clients done" not in last
        assert "stopped after round 2/5" in last

    def test_an_exception_takes_the_display_down(self, make_trainer, line_clients, line_module, monkeypatch):
        terminal = Terminal(monkeypatch)

        class Failing(line_module):
            def training_step(self, batch):
                if self.current_epoch == 1:
                    raise ValueError("no such luck")
                return super().training_step(batch)

        display = ProgressDisplay()
        with pytest.raises(TrainingError, match="no such luck"):
            make_trainer(display, max_rounds=3).fit(Failing(), line_clients([1.0]))
        assert sys.stdout is terminal.stream
        output = terminal.close()
        assert output.endswith("\x1b[?25h")  # the cursor is back, the last thing written
        assert "round 0/3" in output  # what was shown last stays

    def test_what_is_printed_meanwhile_stays(self, make_trainer, line_clients, line_module, monkeypatch):
        terminal = Terminal(monkeypatch)

        class Talking(line_module):
            def on_train_epoch_start(self):
                print(f"hello from round {self.current_epoch}")

        make_trainer(ProgressDisplay(), max_rounds=2).fit(Talking(), line_clients([1.0]))
        output = terminal.close()
        assert "hello from round 0" in output
        assert "hello from round 1" in output
