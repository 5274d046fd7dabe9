import io
import itertools
import re
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from algorithm_run import callbacks
from lightning.pytorch.profilers import PassThroughProfiler
from rich.console import Console
from tiny import ManualModule, TinyClients, TinyModule, quiet_trainer, same_bits, weights_of

from lightning_fl import FederatedTrainer, TrainingError
from lightning_fl.callbacks import Callback, ModelCheckpoint
from lightning_fl.engine.profile import RoundProfiler, _after_kernels, profile_table, timed_items


class HandClock:
    """Tells what it is set to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def profiler(clock: HandClock) -> RoundProfiler:
    return RoundProfiler(clock)


def trainer_in(folder: Path, **settings: Any) -> FederatedTrainer:
    given = {"max_rounds": 3, "local_steps": 3, "seed": 5, "enable_checkpointing": True}
    return quiet_trainer(**(given | settings | {"default_root_dir": folder / "runs"}))


def ticking(trainer: FederatedTrainer) -> FederatedTrainer:
    """Every reading of the clock is a second after the one before, so sums are exact."""
    trainer.profiler.clock = itertools.count(0.0).__next__
    return trainer


def written(trainer: FederatedTrainer) -> pd.DataFrame:
    return pd.read_csv(Path(trainer.log_dir) / "profile.csv")


# -- arithmetic ----------------------------------------------------------------------------------------------------


#: Words (a round, the end of all, an action that starts or stops, seconds) -> seconds by round and category.
SEQUENCES: dict[str, tuple[str, dict[int, dict[str, float]]]] = {
    "what is inside is taken from what is outside": (
        "round1, 1, +outer, 2, +inner, 4, +outer, 8, -outer, -inner, 16, -outer, 32, round2, 64, +inner, 128, -inner,"
        " end, 256",
        {1: {"rest": 33, "outer": 26, "inner": 4}, 2: {"rest": 64, "inner": 128}},
    ),
    "time belongs to the latest of what overlaps": (
        "round1, +a, 1, +b, 2, -a, 4, -b, 8, -c, end",
        {1: {"a": 1, "b": 6, "rest": 8}},
    ),
    "outside of the rounds nothing is recorded": (
        "+before, 1, round7, 2, -before, 4, +across, 8, end, -across, +later, 16, -later",
        {7: {"rest": 6, "across": 8}},
    ),
    "a new round ends what is left running": (
        "round1, +outer, +failing, 2, -failing, 4, -outer, +left, 8, round2, 16, end",
        {1: {"rest": 0, "outer": 4, "failing": 2, "left": 8}, 2: {"rest": 16}},
    ),
    # An evaluation and a callback take the engine's parts, but not others.
    **{
        f"inside of {outer}": (
            f"round1, +{outer}, 1, +data, 2, +forward, 4, -forward, -data, +waiting for ranks, 8, -waiting for ranks,"
            f" +[Callback]Some.on_client_end, 16, -[Callback]Some.on_client_end, -{outer}, end",
            {1: {"rest": 0, "waiting for ranks": 8, "Some": 16, **seconds}},
        )
        for outer, seconds in (
            ("evaluation", {"evaluation": 7}),
            ("[Callback]Another.on_round_end", {"Another": 7}),
            ("[Callback]Another.around_training_step", {"Another": 1, "data": 2, "forward": 4}),
            ("optimiser steps", {"optimiser steps": 1, "data": 2, "forward": 4}),
        )
    },
}


@pytest.mark.parametrize(("words", "rounds"), SEQUENCES.values(), ids=SEQUENCES.keys())
def test_seconds_are_counted_once(
    words: str, rounds: dict[int, dict[str, float]], profiler: RoundProfiler, clock: HandClock
) -> None:
    for word in words.split(", "):
        if word.startswith("round"):
            profiler.begin_round(int(word.removeprefix("round")))
        elif word == "end":
            profiler.end_rounds()
        elif word[0] in "+-":
            (profiler.start if word[0] == "+" else profiler.stop)(word[1:])
        else:
            clock.spend(float(word))
    assert profiler.rounds == rounds


def test_items_are_timed_and_what_is_done_with_them_is_not(profiler: RoundProfiler, clock: HandClock) -> None:
    def make() -> Any:
        for item in "ab":
            clock.spend(1)
            yield item
        clock.spend(2)

    profiler.begin_round(1)
    seen = []
    for item in timed_items(profiler, make()):
        clock.spend(8)
        seen.append(item)
    profiler.end_rounds()
    assert seen == ["a", "b"]
    assert profiler.rounds == {1: {"rest": 16, "data": 4}}


def test_a_gpu_is_waited_for_before_the_clock_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", happened.append)
    monkeypatch.setattr(time, "perf_counter", lambda: happened.append("read") or 3.0)
    device = torch.device("cuda", 1)
    assert _after_kernels(device)() == 3.0
    assert happened == [device, "read"]


# -- a run ---------------------------------------------------------------------------------------------------------


class RoundSpan(Callback):
    """When each round began and ended; fails a client's turn where it is told to."""

    def __init__(self, fails: tuple[int, int] | None = None) -> None:
        self.fails = fails
        self.spans: list[list[float]] = []

    def on_round_start(self, trainer: FederatedTrainer) -> None:
        self.spans.append([time.perf_counter()])

    def on_client_step_end(self, trainer: FederatedTrainer, client: int, num_steps: int) -> None:
        if (trainer.current_round, client) == self.fails:
            raise RuntimeError("no power")

    def on_round_end(self, trainer: FederatedTrainer) -> None:
        self.spans[-1].append(time.perf_counter())


def test_parts_add_up_to_the_rounds(tmp_path: Path) -> None:
    span = RoundSpan()
    trainer = trainer_in(tmp_path, profile=True, callbacks=[span])
    before = time.perf_counter()
    trainer.fit(TinyModule(), TinyClients())
    whole = time.perf_counter() - before
    frame = written(trainer)
    assert list(frame.columns) == ["rank", "round", "category", "seconds"]
    assert not frame.duplicated(["rank", "round", "category"]).any()
    assert (frame["seconds"] >= 0).all()
    assert set(frame["rank"]) == {0}
    sums = frame.groupby("round")["seconds"].sum()
    assert list(sums.index) == [1, 2, 3]
    for seconds, (start, end) in zip(sums, span.spans, strict=True):
        assert seconds > end - start - 1e-6
    assert sums.sum() < whole
    assert set(frame["category"]) == {
        *("data", "turn set-up", "forward", "backward", "optimiser steps", "turn bookkeeping"),
        *("aggregation", "evaluation", "loggers", "RoundSpan", "ModelCheckpoint", "rest"),
    }


def test_no_reading_of_the_clock_is_lost(tmp_path: Path) -> None:
    trainer = ticking(trainer_in(tmp_path, profile=True, callbacks=callbacks()))
    trainer.fit(TinyModule(), TinyClients())
    assert isinstance(trainer.profiler, RoundProfiler)
    readings = trainer.profiler.clock()
    assert sum(sum(categories.values()) for categories in trainer.profiler.rounds.values()) == readings - 1
    frame = written(trainer)
    assert frame["seconds"].sum() == readings - 1
    assert {"DROClientSampling", "LocalMixup"} < set(frame["category"])
    steps = frame[frame["category"] == "optimiser steps"]["seconds"]
    assert (steps > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["fresh", "keep"])
def test_results_have_the_same_bits(keep: str, tmp_path: Path) -> None:
    results = []
    for profile in (False, True):
        made = callbacks()
        trainer = trainer_in(tmp_path / str(profile), profile=profile, callbacks=made, optimizer_state=keep)
        module = TinyModule(dropout=0.2, norm=True)
        trainer.fit(module, TinyClients())
        results.append(weights_of(module))
        assert (Path(trainer.log_dir) / "profile.csv").exists() == profile
    assert isinstance(trainer.profiler, RoundProfiler)
    assert same_bits(*results)


@pytest.mark.slow
def test_a_resumed_fit_profiles_its_own_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = trainer_in(tmp_path, profile=True, callbacks=[ModelCheckpoint(every_n_rounds=1)], max_rounds=2)
    first.fit(TinyModule(), TinyClients())
    capsys.readouterr()
    second = trainer_in(tmp_path, profile=True, callbacks=[ModelCheckpoint(every_n_rounds=1)], max_rounds=4)
    second.fit(TinyModule(), TinyClients(), ckpt_path="last")
    assert sorted(set(written(second)["round"])) == [3, 4]
    assert "round 3" in capsys.readouterr().out
    nothing = trainer_in(tmp_path, profile=True, callbacks=[ModelCheckpoint(every_n_rounds=1)], max_rounds=4)
    nothing.fit(TinyModule(), TinyClients(), ckpt_path="last")  # no round is left
    assert not (Path(nothing.log_dir) / "profile.csv").exists()


def test_a_client_that_fails_leaves_the_parts_whole(tmp_path: Path) -> None:
    skipping = ticking(trainer_in(tmp_path, profile=True, callbacks=[RoundSpan((1, 0))], on_client_error="skip"))
    with pytest.warns(UserWarning, match="no power"):
        skipping.fit(TinyModule(), TinyClients())
    assert isinstance(skipping.profiler, RoundProfiler)
    assert written(skipping)["seconds"].sum() == skipping.profiler.clock() - 1

    failing = trainer_in(tmp_path, profile=True, callbacks=[RoundSpan((1, 0))])
    with pytest.raises(TrainingError, match="no power"):
        failing.fit(TinyModule(), TinyClients())
    assert not (Path(failing.log_dir) / "profile.csv").exists()
    again = RoundSpan()
    failing.callbacks[:] = [again]
    failing.fit(TinyModule(), TinyClients())
    assert sorted(set(written(failing)["round"])) == [1, 2, 3]


class Manual(ManualModule):
    """Optimises manually, and times a part of its step."""

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        optimizer = self.optimizers()
        with self.trainer.profiler.profile("residuals"):
            residuals = self(batch[0]) - batch[1]
        optimizer.zero_grad()
        self.manual_backward(residuals.square().mean())
        optimizer.step()


@pytest.mark.slow
def test_manual_optimisation_and_parts_of_the_modules_own(tmp_path: Path) -> None:
    results = []
    for profile in (False, True):
        module = Manual()
        trainer = trainer_in(tmp_path / str(profile), profile=profile)
        trainer.fit(module, TinyClients())
        results.append(weights_of(module))
        assert module.trainer.profiler is trainer.profiler
        assert isinstance(trainer.profiler, RoundProfiler if profile else PassThroughProfiler)
    assert same_bits(*results)
    spent = written(trainer).groupby("category")["seconds"].sum()
    assert spent[["residuals", "forward", "backward", "optimiser steps"]].min() > 0


# -- the table -----------------------------------------------------------------------------------------------------


def table_text(rows: list[tuple[int, int, str, float]], width: int = 80) -> str:
    frame = pd.DataFrame(rows, columns=["rank", "round", "category", "seconds"])
    out = io.StringIO()
    Console(file=out, width=width).print(profile_table(frame))
    return out.getvalue()


def rows_of(text: str) -> dict[str, list[float]]:
    """Name -> numbers of the rows on one line each."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("  ") if cell.strip()]
        if len(cells) > 2 and all(cell.replace(".", "").isdigit() for cell in cells[1:]):
            found[cells[0]] = [float(cell) for cell in cells[1:]]
    return found


def test_the_table_of_one_rank() -> None:
    rows = [(0, 1, "forward", 3.0), (0, 1, "rest", 0.5)]
    rows += [(0, 2, "forward", 1.0), (0, 2, "rest", 0.5), (0, 3, "forward", 2.0), (0, 3, "data", 0.5)]
    text = table_text(rows)
    assert "where the time of 3 rounds went" in text
    # seconds in all, ms of round 1, ms of each later round, per cent of the later rounds' 2 s a round
    assert rows_of(text) == {
        "forward": [6.0, 3000.0, 1500.0, 75.0],
        "data": [0.5, 0.0, 250.0, 12.5],
        "rest": [1.0, 500.0, 250.0, 12.5],
        "sum": [7.5, 3500.0, 2000.0, 100.0],
    }
    assert list(rows_of(text)) == ["forward", "data", "rest", "sum"]


def test_the_table_of_several_ranks_shows_the_spread() -> None:
    rows = [(0, 5, "forward", 1.0), (1, 5, "forward", 1.0)]
    rows += [(0, 6, "forward", 3.0), (0, 6, "waiting for ranks", 0.0), (1, 6, "forward", 1.0)]
    rows += [(1, 6, "waiting for ranks", 1.75)]
    text = table_text(rows)
    assert "mean over 2 ranks" in text
    assert "round 5" in text
    assert rows_of(text) == {
        "forward": [3.0, 1000.0, 2000.0, 69.6, 1000.0, 3000.0],
        "waiting for ranks": [0.88, 0.0, 875.0, 30.4, 0.0, 1750.0],
        "sum": [3.88, 1000.0, 2875.0, 100.0, 2750.0, 3000.0],
    }


def test_the_table_of_one_round_and_of_long_names_fits_80_columns() -> None:
    text = table_text([(0, 1, "forward", 1.0), (0, 1, "rest", 3.0)])
    assert "1 round went" in text
    assert "later" not in text
    assert rows_of(text) == {"forward": [1.0, 1000.0, 25.0], "rest": [3.0, 3000.0, 75.0], "sum": [4.0, 4000.0, 100.0]}

    name = "ACallbackOfSomebodysWithANameThatIsLongerThanMostOthers"
    rows = [(rank, n, name, 12345.678) for rank in (0, 1) for n in (1, 2)]
    text = table_text(rows)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("12345678.00") == 8
    assert name in re.sub(r"[\s\d.]", "", text)


def test_nothing_is_printed_without_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer_in(tmp_path).fit(TinyModule(), TinyClients())
    assert "went" not in capsys.readouterr().out
