"""``lightning-fl personalize``: a personal model for a new data file from a finished run's shared models."""

import json
import math
import os
import re
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lightning_fl.errors import CheckpointError, ConfigurationError
from lightning_fl.recipe.file import load_recipe
from lightning_fl.recipe.instantiate import instantiate
from lightning_fl.recipe.parser import make_parser
from lightning_fl.recipe.trust import own_classes_only, refuse_foreign_classes

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from lightning_fl.data.module import FederatedDataModule
    from lightning_fl.personalization import Personalization

__all__ = ["add_arguments", "run"]

_SHARED = re.compile(r"shared_(\d+)\.ckpt")
#: Models shown one by one; of more, those with the largest shares.
_MOST_ROWS = 30


def add_arguments(parser: ArgumentParser, command: str) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", type=str, help="Folder of a finished run: the one with config.yaml and summary.json.")
    parser.add_argument(
        "file",
        type=str,
        help="Labelled samples of one client, of the kind that the run was trained on: a CSV file of molecules or of a"
        " table with the run's columns, a .npz file of images, or a silo's folder of images.",
    )
    parser.add_argument(
        "--out",
        type=str | None,
        default=None,
        help="Where the personal model goes, an ordinary Lightning checkpoint (default: RUN/personal/FILE.ckpt).",
    )
    parser.add_argument("--force", action="store_true", help="Replace that file if it is there.")
    parser.add_argument(
        "--holdout",
        type=float,
        default=0.5,
        help="Share of the samples that models are measured on; the others decide the shares. 0: all do both.",
    )
    parser.add_argument(
        "--monitor",
        type=str | None,
        default=None,
        help="Metric of the validation that decides the shares, such as val/acc: from 0 to 1 if more is better, at"
        " least 0 if less is better, then exp(-value) counts (default: an accuracy or the like, else a loss).",
    )
    parser.add_argument("--seed", type=int | None, default=None, help="Seed of the holdout (default: the run's).")
    parser.add_argument(
        "--trust",
        action="store_true",
        help="Let the run's config.yaml name classes outside of lightning_fl: they are imported, their code runs.",
    )
    parser.add_argument("--accelerator", type=str, default="auto", help="cpu, cuda or auto.")


def run(command: str, config: Namespace, parser: ArgumentParser, arguments: Sequence[str]) -> int:
    """Mix, write, print."""
    folder = Path(config.run).expanduser()
    recipe, summary, shared = _read_run(folder)
    _refuse_personal_layers(recipe)
    data = Path(config.file).expanduser()
    out = folder / "personal" / f"{data.name.partition('.')[0]}.ckpt" if config.out is None else Path(config.out)
    _check_out(out, folder if config.out is None else None, replace=config.force)
    named = {"model": recipe["model"], "data": recipe["data"]}
    if not config.trust:
        refuse_foreign_classes(named, str(folder / "config.yaml"))

    # Imports torch and what depends on it, without their warnings.
    fit = make_parser("fit", own_modules=config.trust)

    from lightning import seed_everything

    from lightning_fl.personalization import personalize

    seed = summary["seed"] if config.seed is None else config.seed
    seed_everything(summary["seed"], verbose=False)
    kept = {"num_threads", "precision", "deterministic"}
    settings = {key: value for key, value in (recipe.get("trainer") or {}).items() if key in kept}
    named["trainer"] = {**settings, "accelerator": config.accelerator, "devices": 1, "logger": False}
    with nullcontext() if config.trust else own_classes_only(str(folder / "config.yaml")):
        made = instantiate(fit, fit.parse_object(named))
    dataset = _new_data(made.data, data, summary["data"], folder)
    found = personalize(
        made.model,
        shared,
        dataset,
        out=out,
        monitor=config.monitor,
        holdout=config.holdout,
        seed=seed,
        like=made.data,
        accelerator=config.accelerator,
        **settings,
    )
    _print(found, summary, folder, data, out)
    return 0


def _check_out(out: Path, below: Path | None, *, replace: bool) -> None:
    """Refuse, before anything is read, a file that cannot be written or may not be replaced.

    Args:
        out: the file.
        below: the run's folder, which a file that nobody named must not lie outside of.
        replace: it may be there.
    """
    if out.exists() and not replace:
        raise ConfigurationError(f"{out} is there already: name another file with --out, or replace it with --force.")
    if below is not None and not out.resolve().is_relative_to(below.resolve()):
        raise ConfigurationError(f"{out} leads out of the run's folder, by a link in it: name a file with --out.")
    folder = next(parent for parent in out.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        reason = "which cannot be written" if folder.is_dir() else "which is no folder"
        raise ConfigurationError(f"{out} would lie in {folder}, {reason}: name another file with --out.")


def _new_data(module: "FederatedDataModule", file: Path, record: dict[str, Any], folder: Path) -> "Dataset":
    """The new client's samples, by what the run's record says of its data."""
    try:
        return module.newcomer_data(str(file), record)
    except KeyError as error:
        if error.args and error.args[0] not in record:
            raise CheckpointError(
                f"{folder / 'summary.json'} does not say {error.args[0]!r} of the run's data: another version made it,"
                " or it was changed. Copy it again, or train again."
            ) from error
        raise


def _read_run(folder: Path) -> tuple[dict[str, Any], dict[str, Any], list[Path]]:
    """The run's recipe, its summary and its shared models in their order.

    Raises:
        ConfigurationError: there is no such run, it is not finished, was not started by the command line or kept no
            models.
        CheckpointError: its summary is damaged, or a model is missing.
    """
    if not folder.is_dir():
        raise ConfigurationError(f"{folder} is not a folder: give a run's, such as runs/drflm_esol/version_0.")
    if not (folder / "config.yaml").is_file():
        below = sorted(path.parent for path in folder.glob("*/config.yaml"))
        mend = (
            f"give one of the runs in it, such as {below[-1]}"
            if below
            else "give the folder that lightning-fl fit named; for a run started from Python there is"
            " lightning_fl.personalization.personalize"
        )
        raise ConfigurationError(f"{folder} is no run of lightning-fl fit, it has no config.yaml: {mend}.")
    summary_file = folder / "summary.json"
    try:
        summary = json.loads(summary_file.read_text(encoding="utf-8")) if summary_file.is_file() else {}
        if not isinstance(summary, dict):
            raise TypeError("it is no mapping")
        finished = "rounds" in summary and "data" in summary
        if finished and not (isinstance(summary["data"], dict) and isinstance(summary.get("seed"), int)):
            raise TypeError("it lacks the run's seed or what its data were")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        reason = "it is no text" if isinstance(error, UnicodeDecodeError) else error
        raise CheckpointError(f"{summary_file} is damaged ({reason}): copy it again, or train again.") from error
    if not finished:
        last = folder / "checkpoints" / "last.ckpt"
        resume = f"lightning-fl fit --config {folder / 'config.yaml'}{f' --ckpt_path {last}' if last.is_file() else ''}"
        raise ConfigurationError(
            f"the run {folder} is not finished, it has no summary.json{' of a fit' if summary else ''}:"
            f" end it with {resume}, and give the folder that this names."
        )
    found = {int(match[1]): path for path in folder.glob("models/*") if (match := _SHARED.fullmatch(path.name))}
    if not found:
        raise ConfigurationError(
            f"{folder / 'models'} holds no shared_*.ckpt: the run kept no models; train with ModelCheckpoint's"
            " save_models (and trainer.enable_checkpointing) true."
        )
    missing = sorted(set(range(max(found) + 1)).difference(found))
    if missing:
        raise CheckpointError(f"{folder / 'models' / f'shared_{missing[0]}.ckpt'} is missing: copy the run again.")
    recipe = load_recipe(folder / "config.yaml")
    if not isinstance(recipe.get("trainer") or {}, dict):
        raise ConfigurationError(f"{folder / 'config.yaml'}: trainer is no mapping. Copy the file again.")
    if lacking := [key for key in ("model", "data") if not recipe.get(key)]:
        raise ConfigurationError(
            f"{folder / 'config.yaml'} has no {' and no '.join(lacking)}: it is not the file that lightning-fl fit"
            " wrote. Copy it again, or train again."
        )
    return recipe, summary, [found[k] for k in sorted(found)]


def _refuse_personal_layers(recipe: dict[str, Any]) -> None:
    """Shared models have no layers of use where clients keep some for themselves."""
    trainer = recipe.get("trainer")
    callbacks = (trainer.get("callbacks") if isinstance(trainer, dict) else None) or []
    for callback in callbacks if isinstance(callbacks, list) else [callbacks]:
        if isinstance(callback, dict) and str(callback.get("class_path", "")).rpartition(".")[2] == "PersonalLayers":
            layers = (callback.get("init_args") or {}).get("layers")
            raise ConfigurationError(
                f"the run's clients kept the layers {layers} for themselves (PersonalLayers), nobody trained these in"
                " the shared models: train them on the new client's data, or give a run without PersonalLayers."
            )


def _print(found: "Personalization", summary: dict[str, Any], folder: Path, data: Path, out: Path) -> None:
    from lightning_fl.data.source import STAND_IN_LABEL
    from lightning_fl.metrics import MetricSummary, metric_name
    from lightning_fl.report import breakable, of_all_targets, table_that_fits

    console = Console()
    if summary.get("data_source") == "stand-in":
        console.print(Text(f" {STAND_IN_LABEL} ", "bold black on yellow"))
    if summary.get("interrupted"):
        console.print(f"the run was interrupted after round {summary['rounds']}")
    measured = f"metrics of {found.num_held_out} others" if found.num_held_out else "and so are the metrics"
    title = f"{folder} on {data.name}: shares by {found.monitor} of {found.num_scored} samples, {measured}"
    console.print(Text(title, "bold"), soft_wrap=True)
    importance, shares = found.importance.tolist(), found.mixture.tolist()
    full = {metric_name(name, "val"): name for name in found.shared}
    order = sorted(range(len(shares)), key=lambda k: (-shares[k], k))
    shown = sorted(order[:_MOST_ROWS])

    def table_of(metrics: dict[str, MetricSummary]) -> Table:
        table = Table()
        table.add_column("model")
        score = metric_name(found.monitor, "val")
        table.add_column(Text(f"score υ\n{score if found.higher_is_better else f'exp(-{score})'}"), justify="right")
        table.add_column("share", justify="right")
        for name, metric in metrics.items():
            direction = "higher" if metric.higher_is_better else "lower"
            table.add_column(Text(f"{breakable(name)}\n{direction} is better"), justify="right")
        for k in shown:
            values = [_number(metric.clients.get(k, math.nan)) for metric in metrics.values()]
            table.add_row(f"shared_{k}", _number(importance[k]), f"{shares[k]:.1%}", *values)
        if len(shown) < len(shares):
            rest = f"{1 - math.fsum(shares[k] for k in shown):.1%}"
            table.add_row(f"... and {len(shares) - len(shown)} more", "", rest, *([""] * len(metrics)))
        table.add_section()
        for label, mixed, style in (("uniform mixture", found.uniform, ""), ("personal model", found.personal, "bold")):
            table.add_row(label, "", "", *(_number(mixed.get(full[name], math.nan)) for name in metrics), style=style)
        return table

    kept = of_all_targets({name: found.shared[whole] for name, whole in full.items()})
    console.print(table_that_fits(table_of, kept, console, "it in a wider window"))
    console.print(Text(f"personal model: {out}"), soft_wrap=True)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4g}"
