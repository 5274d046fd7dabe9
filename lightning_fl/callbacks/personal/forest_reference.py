"""Random forests on fingerprints of each client's own molecules, as a reference for graph networks."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_fl.callbacks.callback import Callback
from lightning_fl.callbacks.collaboration.discriminators.inputs import dataset_smiles
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.metrics import ClientMetrics, MetricSummary, higher_is_better, metric_name
from lightning_fl.core.seeding import derive_seed
from lightning_fl.core.validation import Count, checked_fields
from lightning_fl.data.module import Split
from lightning_fl.engine.probes.layer_records import exact_targets
from lightning_fl.functional.task_metrics import TaskName, task_scores
from lightning_fl.runtime.surface import TrainerSurface


@checked_fields
class ForestReference(Callback):
    """Trains scikit-learn's random forest on Morgan counts for every client, on its own training molecules.

    Features are counts of Morgan environments of radius 2, folded to 2,048. Metrics that the model logs as well (of
    :func:`~lightning_fl.functional.task_metrics.task_scores`) are logged as ``SPLIT/forest/NAME`` and included in the
    table and ``summary.json``; nothing else leaves a client. Forests are trained at the first evaluation. A target with
    a single value in a client's training data is predicted as that value.

    Needs molecules with SMILES, and targets that are numbers or 0 and 1.

    Args:
        num_trees: of each forest.

    Raises:
        ConfigurationError: at the first evaluation, the data are not molecules.
    """

    only_shows = True
    traits = ("own_samples",)

    num_trees: Count = 200

    def setup(self, trainer: TrainerSurface, stage: str) -> None:
        self._found: dict[tuple[int, Split], dict[str, float]] = {}
        self._forests: dict[int, list[Any]] = {}

    def on_evaluate_end(self, trainer: TrainerSurface, split: Split, metrics: ClientMetrics) -> None:
        if not self._forests:
            self._fit(trainer)
        own = {}
        evaluated = {client for metric in metrics.values() for client in metric.clients}
        for client in evaluated.intersection(trainer.hosted_clients):
            if (client, split) not in self._found:
                self._found[client, split] = self._evaluate(trainer, client, split)
            own[client] = self._found[client, split]
        everyone = trainer.strategy.exchange(own)
        for name in [metric_name(name, split) for name in metrics]:
            values = {client: found[name] for client, found in everyone.items() if name in found}
            if values:
                metrics[f"{split}/forest/{name}"] = MetricSummary.of(values, higher_is_better=higher_is_better(name))

    def _fit(self, trainer: TrainerSurface) -> None:
        summaries = trainer.target_summaries(lambda y: (y.isnan() | (y == 0) | (y == 1)).all())
        self._task: TaskName = "classification" if bool(summaries.all()) else "regression"
        for client in trainer.hosted_clients:
            counts, targets = _samples(trainer, client, "train")
            self._forests[client] = [
                self._forest(counts, targets[:, number], derive_seed(trainer.seed, "forest", client, number))
                for number in range(targets.shape[1])
            ]

    def _forest(self, counts: np.ndarray, target: Tensor, seed: int) -> Any:
        from sklearn.dummy import DummyClassifier, DummyRegressor  # type: ignore[import-untyped]
        from sklearn.ensemble import (  # type: ignore[import-untyped]  # takes seconds to import
            RandomForestClassifier,
            RandomForestRegressor,
        )

        present = ~target.isnan()
        known, rows = target[present].numpy(), counts[present.numpy()]
        classes = self._task == "classification"
        if len(np.unique(known)) < 2:
            dummy = DummyClassifier(strategy="most_frequent") if classes else DummyRegressor(strategy="mean")
            return dummy.fit([[0.0]], known[:1] if len(known) else [0.0])
        kind = RandomForestClassifier if classes else RandomForestRegressor
        return kind(n_estimators=self.num_trees, random_state=seed % 2**32, n_jobs=1).fit(rows, known)

    def _evaluate(self, trainer: TrainerSurface, client: int, split: Split) -> dict[str, float]:
        """Metrics of a hosted client's forests on a split; empty without samples."""
        if trainer.datamodule.client_data(client, split) is None:
            return {}
        counts, targets = _samples(trainer, client, split)
        columns = [torch.from_numpy(self._predict(forest, counts)) for forest in self._forests[client]]
        predictions = torch.stack(columns, dim=1)
        least = (trainer.module.hparams.get("min_positives", 1), trainer.module.hparams.get("min_negatives", 1))
        found = dict(task_scores(self._task, predictions, targets, least=least).mean)
        present = ~targets.isnan()
        if self._task == "regression" and bool(present.any()):
            error = (predictions - targets)[present]
            found |= {"rmse": float(error.square().mean().sqrt()), "mae": float(error.abs().mean())}
        return found

    def _predict(self, forest: Any, counts: np.ndarray) -> np.ndarray:
        if self._task == "regression":
            return np.asarray(forest.predict(counts), dtype=np.float64)
        probabilities = forest.predict_proba(counts)
        classes = forest.classes_.tolist()
        return probabilities[:, classes.index(1.0)] if 1.0 in classes else np.zeros(len(counts))


def _samples(trainer: TrainerSurface, client: int, split: Split) -> tuple[np.ndarray, Tensor]:
    """Morgan counts [n, 2048] and targets [n, T], float64, of a hosted client's split, with its label noise."""
    from lightning_fl.data.molecules.descriptors import compute_descriptors

    smiles = dataset_smiles(trainer.datamodule.client_data(client, split))
    batches = trainer.client_batches(client, split)
    if smiles is None or batches is None:
        name = type(trainer.datamodule).__name__
        raise ConfigurationError(f"ForestReference needs SMILES, which {name} lacks: remove it.")
    targets = torch.cat([exact_targets(batch) for batch, _ in batches.once(trainer.loop.path(client, split))]).cpu()
    return compute_descriptors(smiles, "morgan").numpy(), targets.double().reshape(len(targets), -1)
