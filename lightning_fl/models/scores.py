"""Metrics of a pass over all targets, and a warning of targets without any."""

import warnings
from collections.abc import Mapping
from typing import Any

from lightning_fl.core.client_names import curve_names
from lightning_fl.core.errors import listed
from lightning_fl.functional.task_metrics import TaskOutputs, task_scores
from lightning_fl.models.tasks import TASKS


class SkippedTargets:
    """Targets without metrics, collected over the clients of a pass and reported after the first pass of a split."""

    def __init__(self) -> None:
        self._found: dict[str, dict[tuple[str, str], list[str]]] = {}
        self._reported: set[str] = set()

    def add(self, trainer: Any, split: str, targets: Mapping[str, str]) -> None:
        """Add a client's targets, each with the reason why it has no metrics."""
        if split in self._reported:
            return
        number = getattr(trainer, "client", None)  # none in a run without clients
        client = "" if number is None else str(trainer.datamodule.client_names()[number])
        for target, reason in targets.items():
            clients = self._found.setdefault(split, {}).setdefault((target, reason), [])
            if client not in clients:  # a client may be evaluated with several models
                clients.append(client)

    def warn(self, trainer: Any, split: str) -> None:
        """Warn on each process of the targets of its clients, if there are any."""
        if split in self._reported:
            return
        self._reported.add(split)
        found = self._found.pop(split, {})
        if not found:
            return
        words = [
            f"{target} ({reason}{'' if clients == [''] else f' at {listed(clients, 3)}'})"
            for (target, reason), clients in found.items()
        ]
        rank = f"rank {trainer.global_rank}: " if getattr(trainer, "world_size", 1) > 1 else ""
        what = f"{rank}{split}: targets without metrics, left out of the means"
        warnings.warn(f"{what}: {listed(words, 8)}.", stacklevel=2)


def log_scores(model: Any, split: str, left_out: SkippedTargets) -> None:
    """Log the metrics of a ``MoleculeModel`` that need all predictions of a pass; collect the targets without any."""
    outputs: TaskOutputs = getattr(model, f"{split}_outputs")
    if not outputs.prediction:
        return
    prediction, target, bound = outputs.compute()
    if not target.ndim:  # torchmetrics makes a number of a single entry
        target = target[None, None]
        prediction = prediction if prediction.ndim else prediction[None, None]
        bound = None if bound is None else bound[None, None]
    outputs.reset()
    options = model.hparams
    standardized = split == "test" and model.task == "regression" and options["standardize_targets"]
    scores = task_scores(
        model.task,
        prediction,
        target,
        bound,
        least=(options["min_positives"], options["min_negatives"]),
        train_mean=model.target_mean if standardized and model.target_learned else None,
    )
    given = getattr(getattr(model.trainer, "datamodule", None), "target_names", None) or []
    own_names = len(given) == model.num_targets
    names = curve_names(given, "target") if own_names else list(map(str, range(model.num_targets)))
    for name, value in scores.mean.items():
        if name not in TASKS[model.task].over_values:
            model.log(f"{split}/{name}", value, batch_size=len(target))
    if 1 < model.num_targets <= options["log_targets"]:
        for name, values in scores.tasks.items():
            for number, value in values.items():
                model.log(f"{split}/{name}/{names[number]}", value, batch_size=len(target))
    left_out.add(model.trainer, split, {names[number]: why for number, why in scores.left_out.items()})
