"""Tables at the end of a run: metrics of every client, their average, the worst client by name, the spread."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from lightning_fl.callbacks.progress import displayed_metric
from lightning_fl.core.client_names import curve_names
from lightning_fl.core.metrics import GainSummary, MetricSummary, default_metric, metric_name
from lightning_fl.core.terminal import terminal
from lightning_fl.data.module import Split
from lightning_fl.data.source import STAND_IN_LABEL

if TYPE_CHECKING:
    from lightning_fl.trainer.trainer import FederatedTrainer

__all__ = [
    "breakable",
    "client_table",
    "constant_line",
    "gain_line",
    "of_all_targets",
    "print_report",
    "table_that_fits",
    "target_table",
]

#: Clients shown one by one; of more, the worst ones are shown.
MOST_ROWS = 30
_RECORD = "summary.json"


def client_table(
    metrics: Mapping[str, MetricSummary],
    names: Sequence[str],
    num_samples: Mapping[int, int] | None = None,
    title: str | Text = "",
) -> Table:
    """A row per client, then the average, the worst, the best and the standard deviation over clients.

    Each column's best value is green and its worst red. Of more than 30 clients the 30 that are worst in the first loss
    (else the first metric) are shown, the worst first, and a line says how many are not.

    Args:
        metrics: name -> summary over clients, as the trainer returns them.
        names: client -> its name.
        num_samples: client -> samples behind its values, for a column of their own.
        title: above the table.
    """
    table = Table(title=title, title_justify="left")
    table.add_column("client", min_width=max(map(cell_len, names), default=0))
    if num_samples is not None:
        table.add_column("samples", justify="right")
    for name, metric in metrics.items():
        direction = "higher" if metric.higher_is_better else "lower"
        table.add_column(Text(f"{breakable(name)}\n{direction} is better"), justify="right")
    clients = sorted({client for metric in metrics.values() for client in metric.clients})
    leading = displayed_metric(metrics)
    many = leading is not None and len(clients) > MOST_ROWS
    shown = _worst_first(clients, metrics[leading])[:MOST_ROWS] if many and leading is not None else clients
    for client in shown:
        samples = [] if num_samples is None else [str(num_samples.get(client, ""))]
        table.add_row(Text(names[client]), *samples, *(_cell(metric, client) for metric in metrics.values()))
    blank = [] if num_samples is None else [""]
    if many:
        rest = Text(f"... and {len(clients) - len(shown)} more,\nnone worse in {leading}")
        table.add_row(rest, *blank, *([""] * len(metrics)))
    table.add_section()
    table.add_row("average", *blank, *(_number(metric.mean) for metric in metrics.values()), style="bold")
    table.add_row("worst", *blank, *(_worst(metric, names) for metric in metrics.values()), style="bold")
    table.add_row("best", *blank, *(_number(metric.best) for metric in metrics.values()))
    table.add_row("standard deviation", *blank, *(_number(metric.std) for metric in metrics.values()))
    return table


def target_table(metrics: Mapping[str, MetricSummary], order: Sequence[str] = ()) -> Table:
    """A row per target of a model with several: the mean over clients of each metric ``NAME/TARGET``.

    Args:
        metrics: ``NAME/TARGET`` -> summary over clients.
        order: the targets as the data have them; others follow, by their numbers or as they come.
    """
    places = {target: place for place, target in enumerate(order)}
    targets = dict.fromkeys(name.partition("/")[2] for name in metrics)
    rest = {target: len(order) + (int(target) if target.isdecimal() else 0) for target in targets}
    columns = list(dict.fromkeys(name.partition("/")[0] for name in metrics))
    table = Table()
    table.add_column("target")
    table.add_column("clients", justify="right")
    for name in columns:
        table.add_column(Text(breakable(name)), justify="right")
    for target in sorted(targets, key=lambda target: places.get(target, rest[target])):
        found = {name: metrics.get(f"{name}/{target}") for name in columns}
        counts = [len(metric.clients) for metric in found.values() if metric is not None]
        cells = ["-" if metric is None else _number(metric.mean) for metric in found.values()]
        table.add_row(Text(target), str(max(counts)), *cells)
    return table


def _of_targets(metrics: Mapping[str, MetricSummary]) -> dict[str, MetricSummary]:
    """Those of single targets: ``NAME/TARGET`` where there is the mean ``NAME`` too; not of the local models."""
    return {
        name: metric
        for name, metric in metrics.items()
        if "/" in name and name.partition("/")[0] in metrics and not name.startswith("local/")
    }


def of_all_targets(metrics: Mapping[str, MetricSummary]) -> dict[str, MetricSummary]:
    """The metrics less those of single targets.

    Args:
        metrics: name, without its split -> summary over clients.
    """
    single = _of_targets(metrics)
    return {
        name: metric
        for name, metric in metrics.items()
        if name not in single and name.removeprefix("local/") not in single
    }


def print_report(trainer: "FederatedTrainer", console: Console | None = None, predict: str | None = None) -> None:
    """Print the table of the last test (else validation) and where the run's folder is; rank zero only.

    Args:
        trainer: after ``fit``, ``validate`` or ``test``.
        console: where to; standard output by default.
        predict: the command that predicts with the run, if there is one.
    """
    if not trainer.is_global_zero or not trainer.is_set_up:
        return
    console = console or terminal()
    split: Split = "test" if trainer.federation.metrics.get("test") else "val"
    metrics = {metric_name(name, split): metric for name, metric in trainer.federation.metrics.get(split, {}).items()}
    source = trainer.datamodule.source
    if source == "stand-in":
        console.print(Text(f" {STAND_IN_LABEL} ", "bold black on yellow"))
    if metrics:
        samples = trainer.federation.evaluated_samples[split]
        word = "test" if split == "test" else "validation"
        # Not the table's own title, which would be broken to the table's width.
        console.print(Text(f"{word} of {type(trainer.module).__name__}, data: {source}", "bold"))
        console.print(Text(f"evaluated: {trainer.evaluated_model}"))
        names = trainer.datamodule.client_names()
        single = _of_targets(metrics)
        # Local models, with which the lines below compare, are left out first where there is no room.
        metrics = dict(sorted(of_all_targets(metrics).items(), key=lambda item: item[0].startswith("local/")))
        console.print(table_that_fits(lambda shown: client_table(shown, names, samples), metrics, console, _RECORD))
        if single:
            console.print(Text("mean over clients of each target", "bold"))
            order = curve_names(getattr(trainer.datamodule, "target_names", None) or [], "target")
            console.print(table_that_fits(lambda shown: target_table(shown, order), single, console, _RECORD))
        line = constant_line(metrics, getattr(trainer.datamodule, "target_units", None) or [])
        if line:
            console.print(Text(line), soft_wrap=True)
        for name, gain in trainer.federation.gains.get(split, {}).items():
            # Not of every target; and the error of a constant is the same for all models.
            if metric_name(name, split) not in single and any(gain.clients.values()):
                console.print(Text(gain_line(metric_name(name, split), gain, names)))
    else:
        console.print("nothing was evaluated: the model defines no test or validation step, or no client has such data")
    for line in _ways_on(trainer, predict):
        console.print(Text(line), soft_wrap=True)


def constant_line(metrics: Mapping[str, MetricSummary], units: Sequence[str]) -> str:
    """The first error beside that of predicting the training data's mean for all: "rmse 0.89 mol/L on average, ...".

    Args:
        metrics: name, without its split -> summary over clients.
        units: of the targets.

    Returns:
        A line, or "" where no error has such a metric beside it (``NAME_of_mean``).
    """
    for name, metric in metrics.items():
        constant = metrics.get(f"{name}_of_mean")
        if constant is not None:
            unit = f" {units[0]}" if len(units) == 1 and units[0] != "not given" else ""
            return f"{name} {_number(metric.mean)}{unit} on average; the training data's mean, for all, has " + (
                _number(constant.mean)
            )
    return ""


def _ways_on(trainer: "FederatedTrainer", predict: str | None = None) -> Iterator[str]:
    """Where the run is, which round it is of, and what can be done with it next, a line each."""
    checkpoint = trainer.checkpoint_callback
    if checkpoint is not None and checkpoint.best_round is not None and checkpoint.best_value is not None:
        # The test of the best round has gone back to it.
        rounds = max(trainer.federation.current_round, checkpoint.last_round or 0)
        monitor = checkpoint.monitor or default_metric(trainer.federation.metrics.get("val", {}))
        yield f"best round: {checkpoint.best_round} of {rounds} by {monitor}, {checkpoint.best_value:.4g}"
    folder = Path(trainer.log_dir)
    yield f"run: {folder}"
    pictures = len(list(folder.glob("figures/*.png")))
    if pictures:
        yield f"pictures: {folder / 'figures'} ({pictures})"
    if any(folder.glob("events.out.tfevents.*")):
        yield f"curves: tensorboard --logdir {folder}"
    if predict is not None:
        yield f"predict: {predict}"
    if (folder / "summary.json").is_file():
        yield f"report: lightning-fl show {folder}"
        yield f"compare: lightning-fl compare {folder} OTHER_RUN"


def table_that_fits(
    make: Callable[[dict[str, MetricSummary]], Table],
    metrics: dict[str, MetricSummary],
    console: Console,
    elsewhere: str,
) -> Table:
    """A table of as many of the metrics, the first ones, as the console has room for.

    If lines must be broken, columns are as wide as their longest words: Rich narrows all alike, and cuts numbers in one
    while another has space left.

    Args:
        make: the table of some metrics.
        metrics: name, without its split -> summary over clients.
        console: to print on.
        elsewhere: where the other metrics are.
    """
    kinds = list(dict.fromkeys(name.partition("/")[0] for name in metrics))
    table = Table()
    for count in range(len(kinds), 0, -1):
        table = make({name: metric for name, metric in metrics.items() if name.partition("/")[0] in kinds[:count]})
        if count < len(kinds):
            table.caption = Text(f"too narrow for {', '.join(kinds[count:])}: see {elsewhere}")
        for column in table.columns:
            texts = [str(cell) for cell in (column.header, *column.cells)]
            words = texts if column.no_wrap else [word for text in texts for word in text.split()]
            column.min_width = max([column.min_width or 0, *map(cell_len, words)])
        widths = Measurement.get(console, console.options.update(width=10_000), table)
        if widths.minimum <= console.width:
            break
    if widths.maximum > console.width:
        for column in table.columns:
            column.width = column.min_width
    return table


def breakable(name: str) -> str:
    """A long name that a column may break into lines."""
    return name.replace("_", " ") if cell_len(name) > 10 else name


def gain_line(metric: str, gain: GainSummary, names: Sequence[str]) -> str:
    """What clients gain in one metric over local training, as text.

    Args:
        metric: its name.
        gain: the gains, positive where the federation is better.
        names: client -> its name.
    """
    if not gain.clients:
        return f"{metric}: no client has a local model to compare with"
    least = min(gain.clients, key=gain.clients.__getitem__)
    return (
        f"{metric}: gain over local training {gain.mean:+.4g} on average, {gain.worst:+.4g} for {names[least]};"
        f" {gain.ipr:.0%} of clients gain (IPR), {gain.harmed:.0%} lose, standard deviation (RSD) {gain.rsd:.4g}"
    )


def _worst_first(clients: Sequence[int], metric: MetricSummary) -> list[int]:
    sign = 1 if metric.higher_is_better else -1

    def goodness(client: int) -> float:
        value = metric.clients.get(client, math.nan)
        return math.inf if math.isnan(value) else sign * value

    return sorted(clients, key=goodness)


def _cell(metric: MetricSummary, client: int) -> Text:
    value = metric.clients.get(client, math.nan)
    text = Text(_number(value))
    values = [other for other in metric.clients.values() if not math.isnan(other)]
    if len(set(values)) > 1:
        best = (max if metric.higher_is_better else min)(values)
        text.stylize("green" if value == best else "red" if value == metric.worst else "")
    return text


def _worst(metric: MetricSummary, names: Sequence[str]) -> str | Text:
    if math.isnan(metric.worst):
        return _number(metric.worst)
    return Text(f"{_number(metric.worst)}\n{names[metric.worst_client]}")


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4g}"
