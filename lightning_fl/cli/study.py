"""``lightning-fl study``: run a grid of recipes, settings and seeds, or resume it, and write one table."""

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from lightning_fl.core.errors import ConfigurationError, did_you_mean
from lightning_fl.recipe.shipped import available_studies, find_study, listing

if TYPE_CHECKING:
    from lightning_fl.study.cells import Cell

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser, command: str) -> None:
    """Add the command's arguments."""
    optional = {"type": str | None, "default": None}
    parser.add_argument(
        "study", **optional, nargs="?", help="A file, or the name of a shipped study (default: list them)."
    )
    parser.add_argument("--scale", **optional, help="A scale of the study (default: full).")
    parser.add_argument("--out", **optional, metavar="DIR", help="Its folder (default: runs/STUDY/SCALE).")
    parser.add_argument(
        "--workers", type=int | None, default=None, metavar="N", help="Runs at once (default: the GPUs, or the cores)."
    )
    parser.add_argument(
        "--only",
        type=str,
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="Run these cells only: an arm or labels of the grid, several with commas, as in --only arm=fedavg,local.",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[], metavar="N", help="Instead of the study's seeds.")
    parser.add_argument(
        "--shard",
        **optional,
        metavar="I/N",
        help="Run the i-th of n shares of these cells, as one job of an array; the last job to end writes the results.",
    )
    parser.add_argument(
        "--ray",
        **optional,
        metavar="ADDRESS",
        help="Run on a Ray cluster: its address, auto for the running one, local for a new one on this machine.",
    )
    parser.add_argument("--dry-run", action="store_true", help="List the cells and their status; run nothing.")


def run(command: str, config: Namespace, parser: ArgumentParser, arguments: Sequence[str]) -> int:
    """Run the cells that are not finished, then write and print the results."""
    if config.study is None:
        print(listing(available_studies()))
        return 0
    # What follows takes a second to import.
    from lightning_fl.study.cells import make_cells
    from lightning_fl.study.display import StudyDisplay
    from lightning_fl.study.environment import describe_environment
    from lightning_fl.study.html_report import write_html
    from lightning_fl.study.local_workers import LocalWorkers
    from lightning_fl.study.lock import Shard, StudyLock
    from lightning_fl.study.ray_workers import RayWorkers
    from lightning_fl.study.results import CellResult, StudyResults
    from lightning_fl.study.study_file import load_study
    from lightning_fl.study.study_tables import print_results, write_markdown
    from lightning_fl.study.workers import Runner, run_cells

    study = load_study(find_study(config.study), config.scale)
    if config.seeds:
        study = study.with_seeds(_seeds(config.seeds))
    out = Path(config.out) if config.out is not None else Path("runs") / study.name / study.scale
    cells = make_cells(study, out)
    chosen = _chosen(config.only, {"arm": study.run_arms, **study.run_grid})
    all_asked = [cell for cell in cells if all({"arm": cell.arm, **cell.place}[key] in chosen[key] for key in chosen)]
    if not all_asked:
        raise ConfigurationError(f"--only {' '.join(config.only)}: the study has no such cell; see --dry-run.")
    shard = None if config.shard is None else Shard.parse(config.shard)
    asked = all_asked if shard is None else shard.select(all_asked)
    if config.dry_run:
        for cell in asked:
            print(f"{CellResult.of(cell, study.metric, out).status:8}{cell.name}")
        return 0
    waiting = [cell for cell in asked if cell.finished() is None]
    if changed := sum(cell.ran_on_other_data() for cell in waiting):
        print(f"data files have changed since {changed} of these cells were run: they are run again", file=sys.stderr)
    local = LocalWorkers(config.workers, waiting if config.ray is None else [])  # recipes are checked here in any case
    runner: Runner = local if config.ray is None else RayWorkers(config.ray, config.workers, waiting, out)

    def check_metric(*_: "Cell") -> None:
        """Refuse a metric that no run has, as soon as the first run has finished."""
        done = [finished for other in cells if (finished := other.finished()) is not None]
        if done and not any(study.metric in finished.metric_names(study.split) for finished in done):
            done[0].metric(study.metric, study.split)

    lock, made, signal_number = StudyLock(out), [], None
    if shard is None:
        made = [folder for folder in (out, *out.parents) if not folder.exists()]
    else:
        lock = StudyLock(out, shard.lock_name(all_asked), lambda name: shard.is_compatible(name, all_asked))
    with lock:
        check_metric()
        environment = describe_environment()
        waiting = [cell for cell in asked if cell.finished() is None]
        if waiting:
            display = StudyDisplay(asked, runner.num_workers)
            try:
                local.check(waiting)
            except ConfigurationError:
                if made:  # by this start, which is refused
                    shutil.rmtree(out, ignore_errors=True)
                for folder in made[1:]:
                    with suppress(OSError):
                        folder.rmdir()
                raise
            with display:
                signal_number = run_cells(runner, waiting, display, cells, environment["commit"], check_metric)
        failed = [cell for cell in (cells if shard is None else asked) if cell.failure() is not None]
        with lock.exclusive():
            num_open = sum(cell.finished() is None and cell.failure() is None for cell in all_asked)
            if shard is None or not num_open:
                results = StudyResults.of(study, cells, out, environment)
                results.write(out)
                write_markdown(results, out)
                write_html(results, out)
                print_results(results, out)
            else:
                print(_shard_summary(asked, failed, num_open, out))
    if signal_number is not None:
        print(f"To resume: {shlex.join(['lightning-fl', 'study', *arguments])}", file=sys.stderr)
        return 128 + signal_number
    return 1 if failed else 0


def _shard_summary(asked: Sequence["Cell"], failed: Sequence["Cell"], num_open: int, out: Path) -> str:
    """Progress of a shard while others are still running."""
    done = sum(cell.finished() is not None for cell in asked)
    lines = [f"{cell.name}: {cell.failure()}; log: {cell.log}" for cell in failed]
    more = f", {len(failed)} failed" if failed else ""
    lines.append(
        f"{done} of this share's {len(asked)} cells are done{more}; {num_open} of all are open. The share that ends"
        f" last writes {out}/table.md, or the same command without --shard."
    )
    return "\n".join(lines)


def _seeds(seeds: Sequence[int]) -> list[int]:
    if len(set(seeds)) < len(seeds) or not all(0 <= seed < 2**32 for seed in seeds):
        raise ConfigurationError(f"--seeds {' '.join(map(str, seeds))}: give different numbers from 0 to 2**32 - 1.")
    return list(seeds)


def _chosen(only: Sequence[str], known: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """``arm=fedavg,local`` as key -> values."""
    chosen: dict[str, list[str]] = {}
    for text in only:
        key, _, values = text.partition("=")
        if key not in known or not values:
            hint = "" if key in known else did_you_mean(key, known)
            raise ConfigurationError(f"--only {text}: give KEY=VALUE with one of the keys {', '.join(known)}{hint}.")
        for value in values.split(","):
            if value not in known[key]:
                there = did_you_mean(value, known[key]) or f"; there are {', '.join(known[key])}"
                raise ConfigurationError(f"--only {text}: there is no {key} {value!r}{there}.")
        chosen.setdefault(key, []).extend(values.split(","))
    return chosen
