"""Tables at the end of a run: metrics of every client, their average, the worst client by name, the spread."""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from lightning_fl.callbacks.progress import displayed_metric
from lightning_fl.core.client_names import curve_names
from lightning_fl.core.escaping import terminal
from lightning_fl.core.metrics import GainSummary, MetricSummary, default_metric, left_out, metric_name
from lightning_fl.data.module import Split
from lightning_fl.data.source import STAND_IN_LABEL
from lightning_fl.runtime.table import Column, Table, Value, label_column, metric_column, number_value, print_table

if TYPE_CHECKING:
    from lightning_fl.trainer.trainer import FederatedTrainer

#: Clients shown one by one; of more, the worst ones are shown.
MOST_ROWS = 30
_STATISTICS = ("average", "worst", "best", "standard deviation")
_ELSEWHERE = "in summary.json"


def client_table(
    metrics: Mapping[str, MetricSummary],
    names: Sequence[str],
    num_samples: Mapping[int, int] | None = None,
    title: str = "",
    notes: Sequence[str] = (),
) -> Table:
    """A row per client, then the average, the worst, the best and the standard deviation over clients.

    Each column's best value is green and its worst red. Of more than 30 clients the 30 that are worst in the first loss
    (else the first metric) are shown, the worst first, and a line says how many are not.

    Args:
        metrics: name -> summary over clients, as the trainer returns them.
        names: client -> its name.
        num_samples: client -> samples behind its values, for a column of their own.
    """
    clients = sorted({client for metric in metrics.values() for client in metric.clients})
    leading, shown, more = displayed_metric(metrics), clients, []
    if leading is not None and len(clients) > MOST_ROWS:
        shown = sorted(clients, key=lambda client: _goodness(metrics[leading], client))[:MOST_ROWS]
        more = [Value(f"... and {len(clients) - len(shown)} more,", f"none worse in {leading}")]
    labels = [*(Value(names[client]) for client in shown), *more]
    labels += [Value(label, state="summary" if label in ("average", "worst") else "") for label in _STATISTICS]
    columns = [Column("client", labels, is_label=True, min_width=max(map(cell_len, names), default=0))]
    if num_samples is not None:
        counts = [Value(str(num_samples.get(client, ""))) for client in shown]
        columns.append(Column("samples", [*counts, *[Value("")] * (len(labels) - len(shown))]))
    for place, (name, metric) in enumerate(metrics.items()):
        values = [*(_cell(metric, client) for client in shown), *[Value("")] * len(more), *_statistics(metric, names)]
        columns.append(metric_column(name, metric.higher_is_better, values, place))
    return Table(title, columns, notes, num_summaries=len(_STATISTICS), elsewhere=_ELSEWHERE)


def target_table(metrics: Mapping[str, MetricSummary], order: Sequence[str] = ()) -> Table:
    """A row per target of a model with several: the mean over clients of each metric ``NAME/TARGET``.

    ``order`` has the targets as in the data; others follow, by their numbers or as they come.
    """
    found: dict[str, dict[str, MetricSummary]] = {}
    for name, metric in metrics.items():
        kind, _, target = name.partition("/")
        found.setdefault(target, {})[kind] = metric
    places = {target: place for place, target in enumerate(order)}
    rest = {target: len(order) + (int(target) if target.isdecimal() else 0) for target in found}
    rows = dict(sorted(found.items(), key=lambda row: places.get(row[0], rest[row[0]])))
    counts = [Value(str(max(len(metric.clients) for metric in row.values()))) for row in rows.values()]
    columns = [label_column("target", list(rows)), Column("clients", counts)]
    kinds = {name.partition("/")[0]: metric.higher_is_better for name, metric in metrics.items()}
    for place, (kind, higher) in enumerate(kinds.items()):
        values = [number_value(row[kind].mean) if kind in row else Value("-") for row in rows.values()]
        columns.append(metric_column(kind, higher, values, place))
    return Table("mean over clients of each target", columns, elsewhere=_ELSEWHERE)


def _of_targets(metrics: Mapping[str, MetricSummary]) -> set[str]:
    """Metrics of single targets: ``NAME/TARGET`` where there is the mean ``NAME`` too; not of the local models."""
    return {name for name in metrics if "/" in name and name.partition("/")[0] in metrics.keys() - {"local"}}


def of_all_targets(metrics: Mapping[str, MetricSummary]) -> dict[str, MetricSummary]:
    """The metrics, by names without their split, less those of single targets."""
    single = _of_targets(metrics)
    return {name: metric for name, metric in metrics.items() if name.removeprefix("local/") not in single}


def print_report(trainer: "FederatedTrainer", console: Console | None = None, predict: str | None = None) -> None:
    """Print the table of the last test (else validation), where the run's folder is, and the command that predicts."""
    if not trainer.is_global_zero or not trainer.is_set_up:
        return
    console = console or terminal()
    split: Split = "test" if trainer.federation.metrics.get("test") else "val"
    found: Mapping[str, MetricSummary] = trainer.federation.metrics.get(split, {})
    measured = {metric_name(name, split): metric for name, metric in found.items()}
    source = trainer.datamodule.source
    if source == "stand-in":
        console.print(Text(f" {STAND_IN_LABEL} ", "bold black on yellow"))
    if measured:
        samples = trainer.federation.evaluated_samples[split]
        word = "test" if split == "test" else "validation"
        names = trainer.datamodule.client_names()
        single = _of_targets(measured)
        # Local models, with which the lines below compare, are left out first where there is no room.
        metrics = dict(sorted(of_all_targets(measured).items(), key=lambda item: item[0].startswith("local/")))
        title = f"{word} of {type(trainer.module).__name__}, data: {source}"
        of_clients = {
            name: {names[client]: value for client, value in metric.clients.items()} for name, metric in metrics.items()
        }
        notes = [f"evaluated: {trainer.evaluated_model}", *left_out(of_clients)]
        print_table(client_table(metrics, names, samples, title, notes), console)
        if single:
            order = curve_names(getattr(trainer.datamodule, "target_names", None) or [], "target")
            print_table(target_table({name: measured[name] for name in measured if name in single}, order), console)
        if line := constant_line(metrics, getattr(trainer.datamodule, "target_units", None) or []):
            console.print(Text(line), soft_wrap=True)
        for name, gain in trainer.federation.gains.get(split, {}).items():
            # Not of every target; and the error of a constant is the same for all models.
            if metric_name(name, split) not in single and any(gain.clients.values()):
                console.print(Text(gain_line(metric_name(name, split), gain, names)))
    else:
        console.print("nothing was evaluated: the model defines no test or validation step, or no client has such data")
    for line in _next_steps(trainer, predict):
        console.print(Text(line), soft_wrap=True)


def constant_line(metrics: Mapping[str, MetricSummary], units: Sequence[str]) -> str:
    """The first error with a metric ``NAME_of_mean``, that of predicting the training data's mean for all, if any.

    ``metrics`` have names without their split, ``units`` are those of the targets.
    """
    for name, metric in metrics.items():
        if (constant := metrics.get(f"{name}_of_mean")) is not None:
            unit = f" {units[0]}" if len(units) == 1 and units[0] != "not given" else ""
            own, of_mean = number_value(metric.mean), number_value(constant.mean)
            return f"{name} {own}{unit} on average; the training data's mean, for all, has {of_mean}"
    return ""


def _next_steps(trainer: "FederatedTrainer", predict: str | None = None) -> Iterator[str]:
    """Best round, folder and follow-up commands, one line each."""
    checkpoint = trainer.checkpoint_callback
    if checkpoint is not None and checkpoint.best_round is not None and checkpoint.best_value is not None:
        # The test of the best round has gone back to it.
        rounds = max(trainer.federation.current_round, checkpoint.last_round or 0)
        monitor = checkpoint.monitor or default_metric(trainer.federation.metrics.get("val", {}))
        yield f"best round: {checkpoint.best_round} of {rounds} by {monitor}, {checkpoint.best_value:.4g}"
    folder, place = Path(trainer.log_dir), shlex.quote(str(trainer.log_dir))
    yield f"run: {folder}"
    if pictures := len(list(folder.glob("figures/*.png"))):
        yield f"pictures: {folder / 'figures'} ({pictures})"
    if any(folder.glob("events.out.tfevents.*")):
        yield f"curves: tensorboard --logdir {place}"
    if predict is not None:
        yield f"predict: {predict}"
    if (folder / "summary.json").is_file():
        yield f"report: lightning-fl show {place}"
        yield f"compare: lightning-fl compare {place} OTHER_RUN"


def gain_line(metric: str, gain: GainSummary, names: Sequence[str]) -> str:
    """What clients gain in one metric over local training, as text; positive where the federation is better."""
    if not gain.clients:
        return f"{metric}: no client has a local model to compare with"
    least = min(gain.clients, key=gain.clients.__getitem__)
    return (
        f"{metric}: gain over local training {gain.mean:+.4g} on average, {gain.worst:+.4g} for {names[least]};"
        f" {gain.ipr:.0%} of clients gain (IPR), {gain.harmed:.0%} lose, standard deviation (RSD) {gain.rsd:.4g}"
    )


def _goodness(metric: MetricSummary, client: int) -> float:
    value = metric.clients.get(client, math.nan)
    return math.inf if math.isnan(value) else value if metric.higher_is_better else -value


def _cell(metric: MetricSummary, client: int) -> Value:
    value, best, worst = metric.clients.get(client, math.nan), metric.best, metric.worst
    state = "" if best == worst else "better" if value == best else "worse" if value == worst else ""
    return number_value(value, state=state)


def _statistics(metric: MetricSummary, names: Sequence[str]) -> list[Value]:
    worst = "" if math.isnan(metric.worst) else names[metric.worst_client]
    return [
        number_value(metric.mean, state="summary"),
        number_value(metric.worst, worst, state="summary"),
        number_value(metric.best),
        number_value(metric.std),
    ]
