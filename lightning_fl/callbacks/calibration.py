"""Calibration of a run's models on the clients' validation data."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from lightning_fl.callbacks.callback import Callback
from lightning_fl.callbacks.model_checkpoint import ModelCheckpoint
from lightning_fl.callbacks.predictions import Pair, pair_outputs
from lightning_fl.engine.probes.on_hosts import beside_targets, check_validation_data
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.files.names import client_files
from lightning_fl.functional.conformal import conformal_scores, score_counts
from lightning_fl.functional.probability_calibration import fit_isotonic, fit_platt, platt_sums, probability_counts
from lightning_fl.runtime.calibration_file import TargetCalibration, write_calibration
from lightning_fl.runtime.surface import TrainerSurface


class Calibration(Callback):
    """Measures the saved models on validation data after fit, for prediction intervals and calibrated probabilities.

    Writes ``calibration.json`` next to ``models/``. A client's model is measured on its own validation data, a shared
    model on those of all clients that use it. Only counts and sums leave a client's rank: numbers of absolute errors on
    a fixed grid for regression; for labels 0 and 1 with predicted probabilities, sums of Platt's Newton steps and label
    counts in probability bins for isotonic regression.

    Needs a ``predict_step`` (or ``forward``) that returns tensors shaped like the targets, in their units. Missing
    targets (NaN) and those that are only bounds are ignored. If validation also selects the best round, intervals may
    be slightly too narrow.

    Raises:
        ConfigurationError: no client has validation data.
    """

    role = "calibration"  # runs after the callbacks that change models at the end
    only_shows = True

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        check_validation_data(trainer.loop, "Calibration")

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        checkpoint = trainer.callback(ModelCheckpoint)
        kept = trainer.federation if checkpoint is None else checkpoint.kept(trainer, trainer.federation.client_stores)
        names = client_files(trainer.datamodule.client_names())
        uses = kept.collaboration.personalisation > 0
        found: dict[str, list[TargetCalibration]] = {}
        # Personal layers of shared models are untrained.
        for k, model in enumerate(kept.models if trainer.federation.personal is None else ()):
            weights = {client: model for client in range(trainer.num_clients) if uses[client, k]}
            of_model = self._measure(trainer, weights, f"shared_{k}", together=True)
            if of_model is None:
                return
            found |= of_model
        own = {client: trainer.loop.client_model(client, kept) for client in trainer.hosted_clients}
        of_clients = self._measure(trainer, own, "", together=False)
        if of_clients is None:
            return
        found |= {names[int(client)]: targets for client, targets in of_clients.items()}
        if trainer.is_global_zero:
            write_calibration(Path(trainer.log_dir), found)

    def _measure(
        self, trainer: TrainerSurface, weights: dict[int, Weights], name: str, *, together: bool
    ) -> dict[str, list[TargetCalibration]] | None:
        """Model, or client's number, -> calibrations of its targets; ``None`` if predictions do not fit the targets."""
        wanted = [client for client in sorted(weights) if client in trainer.hosted_clients]
        pairs: dict[int, Pair] = {}  # predictions and targets [n, T] of validation data
        found: dict[int, tuple[str, int, list[bool]]] = {}
        for client in wanted:
            predict = partial(trainer.loop.evaluator.predict, client, weights[client], "val")
            pair = beside_targets(trainer.loop, client, "val", predict, pair_outputs)
            if isinstance(pair, str):
                found[client] = (pair, 0, [])
            elif pair is not None:
                prediction, target = pairs[client] = pair
                labels = target.isnan() | (target == 0) | (target == 1)
                between = (prediction >= 0) & (prediction <= 1)
                found[client] = ("", target.shape[1], (labels & between).all(0).tolist())
        everyone = trainer.strategy.exchange(found)
        problem = next((text for text, _, _ in everyone.values() if text), None)
        widths = {width for _, width, _ in everyone.values()}
        if problem is None and len(widths) > 1:
            problem = f"clients have different numbers of targets ({', '.join(map(str, sorted(widths)))})"
        if problem is not None:
            rank_zero_warn(f"Calibration writes nothing: {problem}")
            return None
        if not everyone:
            return {}
        flags = [all(of_client) for of_client in zip(*(probable for _, _, probable in everyone.values()), strict=True)]
        if together:
            return {name: _calibrate(pairs, flags, trainer.strategy.exchange)}
        own = {client: [of.plain() for of in _calibrate({client: pair}, flags, dict)] for client, pair in pairs.items()}
        plain = trainer.strategy.exchange(own)
        return {str(client): [TargetCalibration.of_plain(of) for of in targets] for client, targets in plain.items()}


def _calibrate(pairs: dict[int, Pair], flags: list[bool], exchange: Any) -> list[TargetCalibration]:
    """Calibrate the targets of one model; ``exchange`` adds the values of clients on other ranks, if it has any."""
    counts = {  # of each target, in bins of the probability or of scores
        client: [
            probability_counts(*of_target) if flag else score_counts(conformal_scores(*of_target))
            for flag, *of_target in zip(flags, x.T, y.T, strict=True)
        ]
        for client, (x, y) in pairs.items()
    }
    clients: list[list[Any]] = list(exchange(counts).values())
    pooled = {place: torch.stack([of[place] for of in clients]).sum(0) for place, flag in enumerate(flags) if flag}
    platt: list[list[float]] = []
    if pooled:
        positives = torch.stack([counts[1].sum() for counts in pooled.values()]).double()
        negatives = torch.stack([(counts[0] - counts[1]).sum() for counts in pooled.values()]).double()

        def sums(at: Tensor) -> Tensor:
            """Sums [T', 6] of Platt's step for the T' classification targets."""
            totals = list(zip(positives.tolist(), negatives.tolist(), strict=True))
            own = {
                client: torch.stack([platt_sums(x[:, k], y[:, k], at[i], *totals[i]) for i, k in enumerate(pooled)])
                for client, (x, y) in pairs.items()
            }
            return torch.stack(list(exchange(own).values())).sum(0)

        platt = fit_platt(sums, positives, negatives).tolist()
    found = []
    for place, flag in enumerate(flags):
        if flag:
            number = int(pooled[place][0].sum())
            count = sum(1 for of in clients if bool(of[place][0].any()))
            a, b = platt[list(pooled).index(place)]
            fitted = (a, b) if number else None
            found.append(TargetCalibration("classification", number, count, None, fitted, fit_isotonic(pooled[place])))
        else:
            total = sum((Counter(of[place]) for of in clients), Counter[int]())
            count = sum(1 for of in clients if of[place])
            found.append(TargetCalibration("regression", sum(total.values()), count, dict(sorted(total.items()))))
    return found
