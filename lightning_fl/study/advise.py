"""``lightning-fl advise``: a study whose arms are ways to train a recipe's model on its data, and advice from it."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from lightning_fl.core.environment import describe_environment
from lightning_fl.core.errors import ConfigurationError, listed
from lightning_fl.core.escaping import csv_table
from lightning_fl.core.validation import Count, checked_fields
from lightning_fl.files.atomic import write_whole
from lightning_fl.files.names import file_names
from lightning_fl.files.yaml import dump_yaml
from lightning_fl.recipe.file import class_name, load_recipe
from lightning_fl.runtime.table import label_column
from lightning_fl.study.advice import (
    COALITIONS,
    LOCAL,
    POOLED,
    SHARED,
    WITHOUT,
    Advice,
    Results,
    advise_on,
    shown,
    suspects,
    title,
    verdict,
)
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

_Entry = dict[str, Any]
#: Strategy and callbacks.
_How = tuple[str, list[_Entry]]

#: Rounds without improvement that end a run.
_PATIENCE = 10
#: Clients above which arms that compare every pair of them are left out, and above which there is no advice.
_MOST_PAIRED, _MOST_CLIENTS = 50, 1000
#: Callbacks of a recipe that belong to its data and model.
_KEPT = ("LabelNoise", "LocalMixup", "PretrainedWeights")
_OWN_BEST: _Entry = {"class_path": "BestClientModels"}
#: From simple and cheap to complex. Clients with a model of their own keep it as of their own best round; a shared one
#: is that of the best round for all.
_ARMS: dict[str, _How] = {
    LOCAL: ("fedavg", [{"class_path": "LocalTraining"}, _OWN_BEST]),
    SHARED: ("fedavg", []),
    "fine-tuning": ("fedavg", [{"class_path": "FineTuning", "init_args": {"epochs": 10, "best_epoch": True}}]),
    "hcct": ("fedavg", [{"class_path": "HCCT"}]),
    "fedcollab": ("fedavg", [{"class_path": "FedCollab"}]),
    "ditto": ("ditto", [_OWN_BEST]),
    "dpfl": ("fedavg", [{"class_path": "CollaborationGraph", "init_args": {"every_n_rounds": 5}}, _OWN_BEST]),
    POOLED: ("fedavg", [{"class_path": "PooledTraining"}]),
}
#: Arms that compare every pair of clients.
_PAIRED = ("fedcollab", "dpfl")
#: Callbacks of every run, not of the recommended recipe.
_RECORDING: list[_Entry] = [
    {"class_path": "ModelCheckpoint", "init_args": {"save_models": False}},
    {"class_path": "lightning_fl.study.advice_runs.AdviceRecord"},
]


@checked_fields
class Advisor:
    """Tries ways to train the model of a recipe on its data."""

    recipe: Path
    out: Path  #: folder of runs and results
    runner: Callable[[Sequence[Cell]], Runner]  #: makes what runs some cells
    metric: str | None  #: of validation and test data; ``None`` for the first that is not a loss
    seeds: Count
    max_rounds: Count  #: of a run, which ends when validation has not improved for ten rounds
    pooled: bool  #: also train on pooled data, as a reference
    deadline: float | None = None  #: by ``time.monotonic``, to stop with what there is

    def __post_init__(self) -> None:
        self.content = load_recipe(self.recipe)
        trainer = self.content.get("trainer")  # what is not a mapping is refused by the first run
        self.trainer: dict[str, Any] = trainer if isinstance(trainer, dict) else {}
        self._of_data: dict[str, Any] = {}  #: clients without validation data get a fifth of their training data
        match self.content:
            case {"data": {"init_args": {"split": [int() | float() as train, 0, rest]}}}:
                self._of_data = {"split": [0.8 * train, 0.2 * train, rest]}
        self.environment = describe_environment()
        self.signal_number: int | None = None  #: that interrupted it
        self.clients: list[str] = []
        self._metric, self._relation = "", ">"  #: the relation of a better value to a worse one
        self._stop: list[_Entry] = []

    def advise(self) -> Advice | None:
        """Run what is not finished, write the results, and return the advice if there is something to compare."""
        if not self._look():
            return None
        left_out = {}
        if len(self.clients) > _MOST_PAIRED:
            left_out = dict.fromkeys(_PAIRED, f"it compares all pairs of {len(self.clients)} clients.")
        arms = {arm: how for arm, how in _ARMS.items() if arm not in left_out and (self.pooled or arm != POOLED)}
        results, runs = self._run(arms)
        if without := self._without_suspects(runs):
            arms |= without
            results, runs = self._run(arms)
        results.write(self.out)
        write_markdown(results, self.out)
        failures = {cell.arm: cell.failure for cell in results.cells if cell.failure}
        left_out |= {arm: failures.get(arm, "it was not finished in time.") for arm in arms if arm not in runs}
        notes = self._notes(left_out, [run for of_arm in runs.values() for run in of_arm])
        if len(runs.keys() - {POOLED}) < 2:
            if results.failed:
                raise ConfigurationError("\n".join(notes))
            return None
        val, test = (client_comparison(runs, [self._metric], split, reference=runs[LOCAL]) for split in ("val", "test"))
        gains_val, gains_test = (_gains(values, list(runs), self.clients) for values in (val, test))
        settings = {arm: self._settings(arm, how) for arm, how in arms.items()}
        advice = advise_on(Results(self._metric, gains_val, gains_test, _structures(runs)), settings, notes)
        write_whole(self.out / "advice.json", json.dumps(advice.as_dict(), indent=2) + "\n")
        write_study_page(results, self.out, {"Advice": _answers(advice, test, self.clients)})
        return advice

    def recommended(self, advice: Advice) -> str:
        """The recipe with the recommended strategy and callbacks."""
        trainer = {key: value for key, value in self.trainer.items() if key != "callbacks+"}
        trainer |= advice.settings | {"default_root_dir": str(self.out / "recommended")}
        content = {**self.content, "trainer": trainer}
        if self._of_data:
            data = content["data"]
            content["data"] = {**data, "init_args": data["init_args"] | self._of_data}
        return f"# {self.recipe.name} with {title(advice.recommended)}, by lightning-fl advise.\n{dump_yaml(content)}"

    def _look(self) -> bool:
        """Train a round to see clients and metrics; refuse what cannot be advised on. False if it was stopped."""
        name, study = self.recipe.name, self._study({"first-look": ("fedavg", [])}, max_rounds=1)
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
                f"{name}: no validation metrics, by which runs are stopped and the best way is chosen. Give each client"
                " validation data (in a recipe: data.split: [0.7, 0.15, 0.15]), and the model a validation step that"
                " logs a metric."
            )
        common = [one for one in run.metric_names("test") if one in run.metric_names("val")]
        ordered = sorted(common or run.metric_names("test"), key=lambda one: "loss" in one)
        self._metric = self.metric or ordered[0]
        for split in ("test", "val"):
            found = run.metric(self._metric, split)  # refuses one that is not there
        self._relation = ">" if found.higher_is_better else "<"
        stop = {"monitor": monitor["name"], "mode": monitor["mode"], "patience": _PATIENCE}
        self._stop = [{"class_path": "EarlyStopping", "init_args": stop}]
        return True

    def _study(self, arms: Mapping[str, _How], **more: Any) -> Study:
        """A study that claims that arms are better than training alone."""
        claims = [f"mean({arm}) {self._relation} mean({LOCAL})" for arm in _ARMS if arm in arms and arm != LOCAL]
        of_data = {f"data.{name}": value for name, value in self._of_data.items()}
        overrides = {
            arm: {f"trainer.{name}": value for name, value in (self._settings(arm, how, _RECORDING) | more).items()}
            for arm, how in arms.items()
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

    def _settings(self, arm: str, how: _How, extra: Sequence[_Entry] = ()) -> dict[str, Any]:
        """An arm's settings of the trainer, in place of the recipe's."""
        given = [entry for key in ("callbacks", "callbacks+") for entry in _entries(self.trainer.get(key))]
        kept = [entry for entry in given if class_name(entry) in _KEPT]
        settings: dict[str, Any] = {"strategy": how[0], "callbacks": [*kept, *how[1], *self._stop, *extra]}
        settings |= {"max_rounds": self.max_rounds, "check_val_every_n_rounds": 1, "enable_checkpointing": True}
        if arm == POOLED and self.trainer.get("local_steps"):  # as many samples as all clients see
            settings["local_steps"] = self.trainer["local_steps"] * len(self.clients)
        return settings

    def _run(self, arms: Mapping[str, _How]) -> tuple[StudyResults, dict[str, list[FinishedRun]]]:
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

    def _without_suspects(self, runs: Mapping[str, Sequence[FinishedRun]]) -> dict[str, _How]:
        """Arms that average all clients but one that the others' coalitions and graphs leave aside."""
        arms: dict[str, _How] = {}
        names = self.clients
        for left in (names[number] for number in suspects(_structures(runs))):
            path = self.out.absolute() / f"{file_names([WITHOUT + left])[0]}.csv"
            graph = pd.DataFrame(1, index=pd.Index(names, name="client"), columns=names).assign(**{left: 0})
            write_whole(path, csv_table(graph.reset_index()))
            arms[WITHOUT + left] = ("fedavg", [{"class_path": "CollaborationGraph", "init_args": {"graph": str(path)}}])
        return arms

    def _notes(self, left_out: Mapping[str, str], runs: Sequence[FinishedRun]) -> list[str]:
        notes = [f"Left out: {title(arm)}: {reason}" for arm, reason in left_out.items()]
        if self._of_data:
            split = [round(share, 3) for share in self._of_data["split"]]
            notes.append(
                f"{self.recipe.name} has no validation data: all runs and recommended.yaml validate on a fifth of each"
                f" client's training data (data.split: {split})."
            )
        if late := sum(run.summary.get("best_round") == self.max_rounds for run in runs):
            where = f"round {self.max_rounds}, the last"
            notes.append(f"{late} of {len(runs)} runs were best in {where}: raise max_rounds.")
        return notes


def _answers(advice: Advice, gains: pd.DataFrame, names: Sequence[str]) -> list[Part]:
    """Sentences, a figure for each question, and a table of clients; ``gains`` by :func:`.client_comparison`."""
    from lightning_fl.callbacks.figures.plots.run import draw_matrix

    over, by, partners = "training alone", title(advice.structure), advice.partners
    gains = gains[gains["label"] != LOCAL].assign(label=gains["label"].map(title))
    shares = np.array([[partners.get(i, {}).get(j, 0.0) for j in names] for i in names])
    pictures = draw_pictures(
        {
            "which way to train": lambda: draw_intervals(
                {title(arm): (interval, verdict(interval)) for arm, interval in advice.arms.items()},
                f"gain in {advice.metric} over {over}, positive is better; mean over clients, 95 % interval",
            ),
            "each client's gain": lambda: draw_client_values(gains, gain_over=over),
            "with whom": lambda: draw_matrix(shares, names, f"By {by}", "share of seeds") if shares.any() else None,
        }
    )
    intervals, way = list(advice.clients.values()), title(advice.recommended)
    table = [
        label_column("client", names),
        label_column(f"gain in {advice.metric} by {way}", list(map(shown, intervals))),
        label_column("answer", list(map(verdict, intervals))),
    ]
    if partners:
        table.append(label_column(f"with, by {by}", [listed(partners[client], 8) for client in names]))
    return [*map(Part, advice.sentences), Part(pictures=pictures), Part(table=table)]


def _entries(callbacks: Any) -> list[_Entry]:
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
    recorded = {
        arm: [np.array(run.summary["collaboration"]) for run in runs.get(arm, []) if "collaboration" in run.summary]
        for arm in (*COALITIONS, "dpfl")
    }
    return {arm: [(of > 0) & ~np.eye(len(of), dtype=bool) for of in found] for arm, found in recorded.items()}


def advise(
    module: "LightningModule",
    data: Any,
    *,
    out: str | Path = "runs/advise",
    metric: str | None = None,
    seeds: int = 3,
    max_rounds: int = 100,
    pooled: bool = False,
    **arguments: Any,
) -> Advice:
    """Try ways to train a module on clients' data, and say what is decided between them.

    Runs are made here, one after another, and a second call goes on with the finished ones: give another ``out`` for
    another module or other data. All seeds start from the module's weights. Arguments are those of :func:`.federate`,
    whose strategy and callbacks are replaced, and of ``lightning-fl advise``.

    Example::

        advice = lightning_fl.advise(MyModule(), {"north": loader, "south": another})
        print(*advice.sentences, sep="\\n")
        lightning_fl.federate(MyModule(), data, **advice.trainer_arguments())
    """
    from lightning_fl.study.advice_runs import ThisProcess

    plain = {name: value for name, value in arguments.items() if isinstance(value, str | int | float | None)}
    recipe, runner = Path(out, "module_and_data.yaml"), ThisProcess(module, data, arguments)
    write_whole(recipe, dump_yaml({"trainer": plain, "model": str(module), "data": type(data).__name__}))
    advisor = Advisor(
        recipe=recipe,
        out=Path(out),
        runner=lambda _: runner,
        metric=metric,
        seeds=seeds,
        max_rounds=max_rounds,
        pooled=pooled,
    )
    advice = advisor.advise()
    if advice is None:  # nothing limits its time
        raise KeyboardInterrupt
    return advice
