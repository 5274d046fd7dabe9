"""``lightning-fl advise``: a study whose arms are ways to train a recipe's model on its data, and advice from it."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from lightning_fl.core.environment import describe_environment
from lightning_fl.core.errors import ConfigurationError, listed
from lightning_fl.core.validation import Count, checked_fields
from lightning_fl.files.atomic import write_whole
from lightning_fl.files.yaml import dump_yaml
from lightning_fl.recipe.file import class_entry, class_name, load_recipe
from lightning_fl.runtime.table import label_columns
from lightning_fl.study.advice import ARMS, LOCAL, POOLED, WITHOUT, Advice, Results, Way, advise_on, suspects, title
from lightning_fl.study.cells import Cell, make_cells
from lightning_fl.study.claims import parse_claim
from lightning_fl.study.comparison_table import client_comparison
from lightning_fl.study.declaration import Arm, Study
from lightning_fl.study.figures import draw_client_values, draw_intervals
from lightning_fl.study.finished_run import FinishedRun
from lightning_fl.study.html_pages import write_study_page
from lightning_fl.study.page import Part, draw_pictures
from lightning_fl.study.results import StudyResults
from lightning_fl.study.study_tables import write_markdown
from lightning_fl.study.workers import Runner, StudyDisplay, run_cells

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule

#: Rounds without improvement that end a run.
_PATIENCE = 10
#: Clients above which arms that compare every pair of them are left out, and above which there is no advice.
_MOST_PAIRED, _MOST_CLIENTS = 50, 1000
#: Callbacks of a recipe that belong to its data and model, and what ends its runs.
_KEPT = ("LabelNoise", "LocalMixup", "PretrainedWeights", "EarlyStopping")
#: Callbacks of every run, not of the recommended recipe.
_RECORDING = (class_entry("ModelCheckpoint", save_models=False), "lightning_fl.study.advice_runs.AdviceRecord")


@checked_fields
class Advisor:
    """Tries ways to train the model of a recipe on its data."""

    recipe: Path
    out: Path  #: folder of runs and results
    runner: Callable[[Sequence[Cell]], Runner]  #: makes the runner of some cells
    metric: str | None  #: of validation and test data; ``None`` for the first that is not a loss
    seeds: Count
    max_rounds: Count  #: of a run, which ends by the recipe's EarlyStopping, or after ten rounds without improvement
    pooled: bool  #: also train on pooled data, as a reference
    command: str = "lightning_fl.advise(module, data)"  #: for the page: what was called
    deadline: float | None = None  #: by ``time.monotonic``, to stop with what there is

    def __post_init__(self) -> None:
        self.content = load_recipe(self.recipe)  #: with the split that is used
        trainer = self.content.get("trainer")  # what is not a mapping is refused by the first run
        self.trainer: dict[str, Any] = trainer if isinstance(trainer, dict) else {}
        self._of_data: dict[str, Any] = {}  #: clients without validation data get a fifth of their training data
        match self.content:
            case {"data": {"init_args": {"split": [int() | float() as train, 0, rest]}}}:
                self._of_data = {"split": [0.8 * train, 0.2 * train, rest]}
                self.content["data"]["init_args"] |= self._of_data
        self.environment = describe_environment()
        self.signal_number: int | None = None  #: that interrupted it
        self.clients: list[str] = []
        self._metric, self._relation = "", ">"  #: the relation of a better value to a worse one
        self._stop: list[dict[str, Any]] = []

    def advise(self) -> Advice | None:
        """Run what is not finished, write the results, and return the advice if there is something to compare."""
        if not self._look():
            return None
        many, reason = len(self.clients) > _MOST_PAIRED, f"it compares all pairs of {len(self.clients)} clients."
        left_out = {arm: reason for arm, way in ARMS.items() if many and way.pairs}
        arms = {arm: way for arm, way in ARMS.items() if arm not in left_out and (self.pooled or arm != POOLED)}
        results, runs = self._run(arms)
        if avoided := [self.clients[number] for number in suspects(_structures(runs))]:  # try FedAvg without each
            for client in avoided:
                never = class_entry("ClientArrivals", rounds={client: self.max_rounds + 1})
                arms[WITHOUT + client] = Way(title(WITHOUT + client), [never])
            results, runs = self._run(arms)
        results.write(self.out)
        write_markdown(results, self.out)
        failures = {cell.arm: cell.failure for cell in results.cells if cell.failure}
        left_out |= {arm: failures.get(arm, "it was not finished in time.") for arm in arms if arm not in runs}
        notes = list(self._notes(left_out, [run for of_arm in runs.values() for run in of_arm]))
        if len(runs.keys() - {POOLED}) < 2:
            if results.failed:
                raise ConfigurationError("\n".join(notes))
            return None
        val, test = (client_comparison(runs, [self._metric], split, reference=runs[LOCAL]) for split in ("val", "test"))
        gains_val, gains_test = (_gains(values, list(runs), self.clients) for values in (val, test))
        settings = {arm: self._settings(arm, way) for arm, way in arms.items()}
        advice = advise_on(Results(self._metric, gains_val, gains_test, _structures(runs)), settings, notes)
        write_whole(self.out / "advice.json", json.dumps(advice.as_dict(), indent=2) + "\n")
        write_study_page(results, self.out, {"Advice": _answers(advice, test, self.clients)}, self.command)
        return advice

    def recommended(self, advice: Advice) -> str:
        """The recipe with the recommended strategy and callbacks."""
        trainer = {key: value for key, value in self.trainer.items() if key != "callbacks+"}
        trainer |= advice.settings | {"default_root_dir": str(self.out / "recommended")}
        headline = f"# {self.recipe.name} with {title(advice.recommended)}, by lightning-fl advise."
        replaced = tuple(f"trainer.{name}" for name in (*advice.settings, "default_root_dir"))
        content = {key: of for key, of in self.content.items() if not key.startswith(replaced)}
        return f"{headline}\n{dump_yaml(content | {'trainer': trainer})}"

    def _look(self) -> bool:
        """Train a round to see clients and metrics; refuse what cannot be advised on. False if it was stopped."""
        name, study = self.recipe.name, self._study({"first-look": Way("a first look")}, max_rounds=1)
        cell = make_cells(study, self.out)[0]
        self._run_cells([cell])
        if (reason := cell.failure()) is not None:
            raise ConfigurationError(f"{name}: {reason}")
        if (run := cell.finished()) is None:
            return False
        self.clients, monitor = run.client_names, run.summary.get("monitor")
        if not 2 <= len(self.clients) <= _MOST_CLIENTS:
            raise ConfigurationError(f"{name}: there must be 2 to {_MOST_CLIENTS} clients, not {len(self.clients)}.")
        if monitor is None:
            raise ConfigurationError(
                f"{name}: no validation metrics, which stop runs and choose the best way. Give each client validation"
                " data (in a recipe: data.split: [0.7, 0.15, 0.15]), and the model a validation step that logs one."
            )
        common = [one for one in run.metric_names("test") if one in run.metric_names("val")]
        self._metric = self.metric or min(common or run.metric_names("test"), key=lambda one: "loss" in one)
        found = [run.metric(self._metric, split) for split in ("test", "val")]  # refuses one that is not there
        self._relation = ">" if found[0].higher_is_better else "<"
        self._stop = [class_entry("EarlyStopping", monitor=monitor["name"], mode=monitor["mode"], patience=_PATIENCE)]
        return True

    def _study(self, arms: Mapping[str, Way], **more: Any) -> Study:
        """A study that claims that arms are better than training alone."""
        claims = [f"mean({arm}) {self._relation} mean({LOCAL})" for arm in ARMS if arm in arms and arm != LOCAL]
        of_data = {f"data.{name}": value for name, value in self._of_data.items()}
        overrides = {
            arm: {f"trainer.{name}": value for name, value in (self._settings(arm, way, _RECORDING) | more).items()}
            for arm, way in arms.items()
        }
        return Study(
            path=self.out / "study.yaml",
            title=f"Ways to train {self.recipe.stem}",
            metric=self._metric,
            split="test",
            seeds=tuple(range(self.seeds)),
            arms={arm: Arm(str(self.recipe), of_trainer | of_data) for arm, of_trainer in overrides.items()},
            claims=tuple(parse_claim(claim, list(arms), {}) for claim in claims),
        )

    def _settings(self, arm: str, way: Way, extra: Sequence[str | dict[str, Any]] = ()) -> dict[str, Any]:
        """An arm's settings of the trainer, in place of the recipe's."""
        keys = ("callbacks", "callbacks+")
        kept = [one for key in keys for one in _entries(self.trainer.get(key)) if class_name(one) in _KEPT]
        stop = [] if "EarlyStopping" in map(class_name, kept) else self._stop
        settings = dict[str, Any](strategy=way.strategy, max_rounds=self.max_rounds, enable_checkpointing=True)
        settings |= {"callbacks": [*kept, *_entries([*way.callbacks, *stop, *extra])], "check_val_every_n_rounds": 1}
        if arm == POOLED and self.trainer.get("local_steps"):  # as many samples as all clients see
            settings["local_steps"] = self.trainer["local_steps"] * len(self.clients)
        return settings

    def _run(self, arms: Mapping[str, Way]) -> tuple[StudyResults, dict[str, list[FinishedRun]]]:
        """Run what is not finished; returns results, and arm -> runs with seeds of which training alone has one too."""
        study = self._study(arms)
        cells = make_cells(study, self.out)
        self._run_cells(cells)
        done = [(cell, run) for cell in cells if (run := cell.finished()) is not None]
        seeds = {cell.seed for cell, _ in done if cell.arm == LOCAL}
        runs = {arm: [run for cell, run in done if cell.arm == arm and cell.seed in seeds] for arm in arms}
        return StudyResults.of(study, cells, self.out, self.environment), {arm: of for arm, of in runs.items() if of}

    def _run_cells(self, cells: Sequence[Cell]) -> None:
        waiting = [cell for cell in cells if cell.finished() is None]
        if waiting and self.signal_number is None:
            runner, commit = self.runner(waiting), self.environment["commit"]
            with StudyDisplay(cells, runner.num_workers) as display:
                self.signal_number = run_cells(runner, waiting, display, cells, commit, deadline=self.deadline)

    def _notes(self, left_out: Mapping[str, str], runs: Sequence[FinishedRun]) -> Iterator[str]:
        yield from (f"Left out: {title(arm)}: {reason}" for arm, reason in left_out.items())
        if self._of_data:
            split = [round(share, 3) for share in self._of_data["split"]]
            yield (
                f"{self.recipe.name} has no validation data: all runs and recommended.yaml validate on a fifth of each"
                f" client's training data (data.split: {split})."
            )
        if late := sum(run.summary.get("best_round") == self.max_rounds for run in runs):
            yield f"{late} of {len(runs)} runs were best in round {self.max_rounds}, the last: raise max_rounds."


def _answers(advice: Advice, gains: pd.DataFrame, names: list[str]) -> list[Part]:
    """Sentences, a figure for each question, and a table of clients; ``gains`` by :func:`.client_comparison`."""
    from lightning_fl.callbacks.figures.plots.run import draw_matrix

    over, by, partners = title(LOCAL), title(advice.structure), advice.partners
    gains = gains[gains["label"] != LOCAL].assign(label=gains["label"].map(title))
    shares = pd.DataFrame(partners, index=names, columns=names).T.astype(float).fillna(0.0).to_numpy()
    arms = {title(arm): (interval, interval.verdict) for arm, interval in advice.arms.items()}
    axis = f"gain in {advice.metric} over {over}, positive is better; mean over clients, 95 % interval"
    pictures = draw_pictures(
        {
            "which way to train": lambda: draw_intervals(arms, axis),
            "each client's gain": lambda: draw_client_values(gains, gain_over=over),
            "with whom": lambda: draw_matrix(shares, names, f"By {by}", "share of seeds") if shares.any() else None,
        }
    )
    intervals, way = list(advice.clients.values()), title(advice.recommended)
    table = {"client": names, f"gain in {advice.metric} by {way}": list(map(format, intervals))}
    table["answer"] = [interval.verdict for interval in intervals]
    if partners:
        table[f"with, by {by}"] = [listed(partners[client], 8) for client in names]
    return [*map(Part, advice.sentences), Part(pictures=pictures), Part(table=label_columns(table))]


def _entries(callbacks: Any) -> list[dict[str, Any]]:
    """A recipe's callbacks, one or a list, where a name stands for an entry without arguments."""
    found = callbacks if isinstance(callbacks, list) else [callbacks]
    return [{"class_path": one} if isinstance(one, str) else one for one in found if isinstance(one, str | dict)]


def _gains(clients: pd.DataFrame, arms: list[str], names: list[str]) -> pd.DataFrame:
    """Gains from a :func:`.client_comparison` as in :class:`.Results`."""
    clients = clients.assign(gain=clients["gain"].where(clients["label"] != LOCAL, 0.0))
    table = clients.pivot(index=["label", "seed"], columns="client", values="gain")
    return table.reindex(arms, level=0).reindex(columns=names)


def _structures(runs: Mapping[str, Sequence[FinishedRun]]) -> dict[str, list[np.ndarray]]:
    """Arm -> who uses whose data, for every seed, as in :class:`.Results`."""
    found: dict[str, list[np.ndarray]] = {}
    for arm, run in ((arm, run) for arm, of in runs.items() if arm in ARMS and ARMS[arm].finds for run in of):
        if matrix := run.summary.get("collaboration"):
            found.setdefault(arm, []).append((np.array(matrix) > 0) & ~np.eye(len(matrix), dtype=bool))
    return found


def advise(
    module: "LightningModule",
    data: Any,
    *,
    out: str | Path = "runs/advise",
    metric: str | None = None,
    seeds: int = 3,
    max_rounds: int = 1000,
    pooled: bool = False,
    **arguments: Any,
) -> Advice:
    """Try ways to train a module on clients' data, and say what is decided between them.

    Runs are made here, one after another, and a second call goes on with the finished ones. It notices other arguments
    and data in memory; give another ``out`` after a change of the module's code or weights, or of files. All seeds
    start from the module's weights. ``metric`` (default: the first that is not a loss) decides; ``max_rounds`` are
    those of a run at most; ``pooled`` adds pooled data. Others are :func:`.federate`'s; strategy and callbacks are
    replaced.

    Example::

        advice = lightning_fl.advise(MyModule(), {"north": dataset, "south": another})
        print(*advice.sentences, sep="\\n")
        lightning_fl.federate(MyModule(), data, **advice.trainer_arguments())
    """
    from lightning_fl.data.digest import data_digest
    from lightning_fl.data.module import FederatedDataModule
    from lightning_fl.study.advice_runs import ThisProcess
    from lightning_fl.trainer.identity import arguments_of, comparable

    plain = {name: value for name, value in arguments.items() if isinstance(value, str | int | float | None)}
    recipe, runner = Path(out, "module_and_data.yaml"), ThisProcess(module, data, arguments)
    kept = {f"model.{name}": value for name, value in getattr(module, "hparams", {}).items()} | arguments
    if isinstance(data, FederatedDataModule):  # Partitioned and Silos keep their samples under these names
        kept, data = kept | arguments_of("data", data), vars(data).get("data", vars(data).get("datamodules", data))
    digest = data_digest(dict(enumerate(data)) if isinstance(data, list | tuple) else data)
    record = {"trainer": plain, "model": str(module), "data": digest, "settings": comparable(kept)}
    write_whole(recipe, dump_yaml(record))
    asked = dict[str, Any](metric=metric, seeds=seeds, max_rounds=max_rounds, pooled=pooled)
    advisor = Advisor(recipe=recipe, out=Path(out), runner=lambda _: runner, **asked)
    if (advice := advisor.advise()) is None or advisor.signal_number is not None:  # nothing limits its time
        raise KeyboardInterrupt
    return advice
