"""``lightning-fl advise``: try ways to train on a recipe's clients, and say which is worth it."""

import re
import shlex
import sys
import time
from pathlib import Path

from lightning_fl.cli.options import Folder, Number
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.escaping import terminal
from lightning_fl.files.atomic import write_whole
from lightning_fl.recipe.shipped import find_recipe


def advise(
    recipe: str,
    *,
    out: Folder | None = None,
    metric: str | None = None,
    seeds: Number = 3,
    max_rounds: Number = 1000,
    pooled: bool = False,
    budget: str | None = None,
    workers: Number | None = None,
    ray: str | None = None,
) -> int:
    """Train alone, with FedAvg, fine-tuning, coalitions, Ditto and a graph, and say what is decided between them.

    Args:
        recipe: a recipe's file, or the name of a shipped one. Its strategy and callbacks are replaced
        out: folder of the runs and results (default: runs/advise/RECIPE)
        metric: metric of validation and test data, such as acc (default: the first that is not a loss)
        seeds: number of seeds
        max_rounds: most rounds of a run, which ends ten rounds after its best one, or by the recipe's EarlyStopping
        pooled: also train on the pooled data, as a reference
        budget: time limit, such as 90s, 30m or 2h: cheap ways first, and advice from what there is
        workers: runs at once (default: the GPUs, or the cores)
        ray: run on a Ray cluster: its address, auto for the running one, local for a new one on this machine
    """
    from lightning_fl.study.advise import Advisor
    from lightning_fl.study.local_workers import LocalWorkers
    from lightning_fl.study.ray_workers import RayWorkers

    if not (match := re.fullmatch(r"(\d+)([smh])", budget or "1s")):
        raise ConfigurationError(f"--budget {budget}: give a number and s, m or h, such as 30m.")
    deadline = None if budget is None else time.monotonic() + int(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]
    path = find_recipe(recipe).absolute()
    out = out or Path("runs", "advise", path.stem)
    command = shlex.join(["lightning-fl", *sys.argv[1:]])
    advisor = Advisor(
        recipe=path,
        out=out,
        runner=lambda cells: LocalWorkers(workers, cells) if ray is None else RayWorkers(ray, workers, cells, out),
        metric=metric,
        seeds=seeds,
        max_rounds=max_rounds,
        pooled=pooled,
        command=command,
        deadline=deadline,
    )
    advice = advisor.advise()
    if advice is None:
        print("too few runs have finished to compare: run the same command again, with more time", file=sys.stderr)
    else:
        write_whole(out / "recommended.yaml", advisor.recommended(advice))
        terminal().print("\n".join(f"- {one}" for one in advice.sentences), highlight=False, soft_wrap=True)
        print(f"advice: {out / 'report.html'}")
        print(f"Now: {shlex.join(['lightning-fl', 'fit', '--config', str(out / 'recommended.yaml')])}")
    if advisor.signal_number is not None:
        print(f"To resume: {command}", file=sys.stderr)
        return 128 + advisor.signal_number
    return 0 if advice is not None else 1
