"""``lightning-fl study``: run a grid of recipes, settings and seeds, or resume it, and write one table."""

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from lightning_fl.cli.options import File, Folder, Number
from lightning_fl.core.errors import ConfigurationError, did_you_mean
from lightning_fl.recipe.shipped import available_studies, find_recipe, listing

if TYPE_CHECKING:
    from lightning_fl.study.cells import Cell
    from lightning_fl.study.results import StudyResults


def study(
    study: str | None = None,
    *,
    scale: str | None = None,
    out: Folder | None = None,
    workers: Number | None = None,
    only: Sequence[str] = (),
    seeds: Sequence[int] = (),
    shard: str | None = None,
    ray: str | None = None,
    from_: File | None = None,
    dry_run: bool = False,
) -> int:
    """Run the cells that are not finished, then write and print the results.

    Args:
        study: a file, or the name of a shipped study (default: list them)
        scale: a scale of the study (default: full)
        out: its folder (default: runs/STUDY/SCALE)
        workers: runs at once (default: the GPUs, or the cores)
        only: run these cells only: KEY=VALUE, where the key is arm or an axis of the grid; several values with commas,
            as in --only arm=fedavg,local
        seeds: instead of the study's seeds
        shard: I/N: run the i-th of n shares of these cells, as one job of an array; the last job to end writes all
            results
        ray: run on a Ray cluster: its address, auto for the running one, local for a new one on this machine
        from_: draw tables and figures of the results in this file (a results.csv, such as those in docs/results); run
            nothing
        dry_run: list the cells and their status; run and check nothing
    """
    if study is None:
        print(listing(available_studies()))
        return 0
    # What follows takes a second to import.
    from lightning_fl.study.cells import make_cells
    from lightning_fl.study.results import CellResult, StudyResults
    from lightning_fl.study.study_file import load_study

    declared = load_study(find_recipe(study, "study"), scale)
    if seeds:
        if len(set(seeds)) < len(seeds) or not all(0 <= seed < 2**32 for seed in seeds):
            given = " ".join(map(str, seeds))
            raise ConfigurationError(f"--seeds {given}: give different numbers from 0 to 2**32 - 1.")
        declared = declared.with_seeds(seeds)
    if from_ is not None:
        if seeds or workers or only or shard or ray or dry_run:
            raise ConfigurationError(f"--from {from_} runs nothing: leave out all other options but --scale and --out.")
        _write(StudyResults.of_table(declared, from_), out or Path("runs") / declared.name / f"{from_.stem}_drawn")
        return 0
    out = out or Path("runs") / declared.name / declared.scale
    cells = make_cells(declared, out)
    chosen = _chosen(only, {"arm": declared.run_arms, **declared.run_grid})
    all_asked = [cell for cell in cells if all({"arm": cell.arm, **cell.place}[key] in chosen[key] for key in chosen)]
    if not all_asked:
        raise ConfigurationError(f"--only {' '.join(only)}: the study has no such cell; see --dry-run.")
    asked = all_asked if shard is None else all_asked[_share(shard)]
    if dry_run:
        for cell in asked:
            print(f"{CellResult.of(cell, declared.metric, out).status:8}{cell.name}")
        return 0
    # These import torch.
    from lightning_fl.core.environment import describe_environment
    from lightning_fl.study.local_workers import LocalWorkers
    from lightning_fl.study.ray_workers import RayWorkers
    from lightning_fl.study.workers import Runner, StudyDisplay, run_cells

    if out.exists() and not out.is_dir():
        raise ConfigurationError(f"{out} is a file: choose another folder with --out.")
    waiting = [cell for cell in asked if cell.finished() is None]
    if changed := sum(cell.ran_on_other_data() for cell in waiting):
        print(f"data files have changed since {changed} of these cells were run: they are run again", file=sys.stderr)
    local = LocalWorkers(workers, waiting if ray is None else [])  # recipes are checked here in any case
    runner: Runner = local if ray is None else RayWorkers(ray, workers, waiting, out)

    def check_metric(*_: "Cell") -> None:
        """Refuse a metric that no run has, as soon as the first run has finished."""
        done = [finished for other in cells if (finished := other.finished()) is not None]
        if done and not any(declared.metric in finished.metric_names(declared.split) for finished in done):
            done[0].metric(declared.metric, declared.split)

    check_metric()
    environment, signal_number = describe_environment(), None
    if waiting:
        display = StudyDisplay(asked, runner.num_workers)
        local.check(waiting)
        with display:
            signal_number = run_cells(runner, waiting, display, cells, environment["commit"], check_metric)
    with FileLock(out / ".lock"):
        num_open = sum(cell.finished() is None and cell.failure() is None for cell in all_asked)
        _write(results := StudyResults.of(declared, cells, out, environment), out)
    names = {cell.name for cell in (cells if shard is None else asked)}
    kept_seeds = map(int, re.findall(r",seed=(\d+)-", "\n".join(path.name for path in out.glob("cells/*"))))
    other_seeds = {*kept_seeds} - {*declared.run_seeds, *(seed for one in declared.chosen for seed in one.seeds)}
    others = make_cells(declared.with_seeds(sorted(other_seeds)), out) if other_seeds else []
    if left_out := {cell.seed for cell in others if cell.finished() is not None}:
        all_seeds = " ".join(map(str, sorted({*declared.run_seeds, *left_out})))
        print(f"not in these results: earlier runs with other seeds; --seeds {all_seeds} shows all", file=sys.stderr)
    if signal_number is not None:
        print(f"To resume: {shlex.join(['lightning-fl', *sys.argv[1:]])}", file=sys.stderr)
        return 128 + signal_number
    if num_open:
        print(f"other processes run {num_open} of these cells; the last to end writes all results", file=sys.stderr)
    return 1 if any(one.name in names for one in results.failed) or (shard is None and num_open) else 0


def _write(results: "StudyResults", out: Path) -> None:
    from lightning_fl.study.html_pages import write_study_page
    from lightning_fl.study.study_tables import print_results, write_markdown

    results.write(out)
    write_markdown(results, out)
    write_study_page(results, out)
    print_results(results, out)


def _share(text: str) -> slice:
    """The cells of "i/n": every n-th, starting with the i-th."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ConfigurationError(f"--shard {text}: write i/n with i from 1 to n, such as $SLURM_ARRAY_TASK_ID/8.")
    return slice(int(match[1]) - 1, None, int(match[2]))


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
