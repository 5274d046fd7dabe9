"""Training alone, and gains of each client over it.

Cho, Jhunjhunwala, Li, Smith, Joshi: To Federate or Not To Federate, 2022 (https://arxiv.org/abs/2205.14840), for the
incentivised participation rate; Bao et al.: Optimizing the Collaboration Structure in Cross-Silo Federated Learning,
ICML 2023 (https://arxiv.org/abs/2306.06508), equations 11 and 12, for both measures.
"""

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_warn

from lightning_fl.callbacks.callback import Callback, Drawings
from lightning_fl.callbacks.personal.best_client_models import deciding_metric, keep_better
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.errors import ConfigurationError, TrainingError
from lightning_fl.core.metrics import ClientMetrics, MetricSummary, metric_name, summarize, summarize_gains
from lightning_fl.core.validation import checked_fields
from lightning_fl.data.module import Split
from lightning_fl.engine.client import ClientState, packed, unpacked
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.runtime.surface import TrainerSurface

_STORE, _BEST = "local_reference", "local_reference_best"


class LocalTraining(Callback):
    """Trains N models from one initial model, each by its own client; see also ``LocalReference``."""

    method_name = "training alone"
    role = "collaboration"

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        trainer.federation.collaboration = Collaboration.local(trainer.num_clients)


@checked_fields
class LocalReference(Callback):
    """Trains a local model for every client alongside the federation and measures the gain over it.

    The local model starts from the same initial weights and takes the same turns (batches, mixup, noise) with its own
    optimiser, but without averaging and without the strategy's proximal term. This doubles the training time and keeps
    one more model per client on its rank. Metrics are logged as ``val/local/NAME``, gains as ``val/NAME/gain`` (mean
    over clients), ``/ipr`` (share of clients that gain), ``/rsd`` (standard deviation of the gains) and ``/harmed``
    (share of clients that lose), for every metric and split, and included in the table and ``summary.json``.

    Models of the same round are compared: in a test those of the best round. With ``FineTuning`` after the fit, or
    ``BestClientModels``, the local ones are of the last round.

    Args:
        own_best_round: compare outside of a fit with each client's local model of its own best round by validation, as
            training alone with early stopping would end; the metric that decides on the best round decides. A later
            process that tests ``best.ckpt`` knows only the rounds until then. No effect with ``run``.
        run: folder or ``summary.json`` of a finished ``LocalTraining`` run on the same data, used as the reference.

    Raises:
        ConfigurationError: at the start of a run, ``run`` has no summary, or has other data.
        TrainingError: a client's local training fails.
    """

    run: str | None = None
    own_best_round: bool = False

    def __post_init__(self) -> None:
        self._figures: dict[str, dict[str, dict[str, float]]] = {}
        self.traits = ("own_samples",) if self.run is None else ()
        self._best: dict[int, Any] = {}  # the fit's best local models, of which a checkpoint may have earlier ones

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        self._best = {}
        if self.run is not None:
            self._figures = _read_figures(Path(self.run), trainer)
            return
        start = trainer.federation.models[0].clone().state_dict()
        for client in trainer.hosted_clients:
            own = start
            if client in trainer.federation.personal_layers:  # the scale of its own targets, say
                own = trainer.federation.client_model(client, trainer.fabric.device).clone().state_dict()
            trainer.client_store(_STORE)[client] = {"weights": own, "state": ClientState().state_dict()}

    def on_aggregate_end(self, trainer: TrainerSurface) -> None:
        if self.run is not None:
            return
        store = trainer.client_store(_STORE)
        losses: dict[int, tuple[float | None, str | None]] = {}
        cause: TrainingError | None = None
        for client in trainer.hosted_clients:
            if client in trainer.federation.absent_clients:
                continue
            state, moments = ClientState(**store[client]["state"]), None
            if trainer.loop.optimizer_state == "average":  # over one client: its own
                moments = unpacked(store[client].get("moments", {}), trainer.fabric.device)
            start = self._weights(trainer, client)
            try:
                report = trainer.loop.training.train(client, start, state, own=False, moments=moments)
            except TrainingError as error:
                losses[client], cause = (None, str(error)), error
                continue
            store[client] = {"weights": trainer.client_weights().clone().state_dict(), "state": state.state_dict()}
            store[client] |= {"moments": packed(moments)} if moments else {}
            loss = report.metrics.get("train/loss")
            losses[client] = (None if loss is None else loss.value, None)
        everyone = trainer.strategy.exchange(losses)
        for client, (_, problem) in everyone.items():
            if problem is not None:
                number = trainer.federation.current_round + 1
                text = f"the local model of client {client} failed in round {number}: {problem}"
                advice = "It serves as the reference (LocalReference)."
                trainer.fail_or_warn(text, "Its weights stay as they were before the round.", advice, cause=cause)
        known = [loss for loss, _ in everyone.values() if loss is not None]
        if known:
            trainer.log("train/local/loss", math.fsum(known) / len(known))

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        self._best = dict(trainer.client_store(_BEST))

    def on_evaluate_end(self, trainer: TrainerSurface, split: Split, metrics: ClientMetrics) -> None:
        reference = self._reference(trainer, split, metrics)
        if self.own_best_round and split == "val" and trainer.round.fitting and reference:
            name, higher = deciding_metric(trainer, reference)
            values, done = reference[name].clients, trainer.federation.current_round
            best = trainer.client_store(_BEST)
            for client in values.keys() & trainer.client_store(_STORE).keys():
                before = best.get(client, {})
                keep_better(best, client, values[client], higher, self._weights(trainer, client), done)
                if client in best and best[client] is not before:
                    best[client]["history"] = [*before.get("history", []), [done, values[client]]]
        trainer.federation.gains[split] = {
            name: summarize_gains(metric.clients, reference[name].clients, metric.higher_is_better)
            for name, metric in list(metrics.items())
            if name in reference
        }
        metrics.update({f"{split}/local/{metric_name(name, split)}": found for name, found in reference.items()})

    def figures(self, trainer: TrainerSurface, stage: str) -> Drawings:
        """Each client's metric, that of its local model and the gain: the first metric that is not a loss, if any."""
        from lightning_fl.callbacks.figures.plots.coalitions import draw_gains

        split: Split = "test" if stage == "test" else "val"
        metrics = trainer.federation.metrics.get(split, ClientMetrics())
        collaboration = trainer.federation.collaboration
        after = "" if stage == "test" else f", round {trainer.federation.current_round}"  # a test is of the best round
        names = {metric_name(name, split): name for name in trainer.federation.gains.get(split, {})}
        for chosen in sorted(names, key=lambda short: "loss" in short)[:1]:
            metric, local = metrics[names[chosen]], metrics[f"{split}/local/{chosen}"]
            draw = partial(
                draw_gains,
                metric.clients,
                local.clients,
                trainer.client_names,
                metric=chosen,
                higher_is_better=metric.higher_is_better,
                title=f"Gain over local training, {split}{after}",
                labels=collaboration.partition if collaboration.num_models > 1 else None,
            )
            yield f"gain_{split}", draw

    def _reference(self, trainer: TrainerSurface, split: Split, metrics: ClientMetrics) -> ClientMetrics:
        if self.run is not None:
            return self._from_run(trainer, split, metrics)
        sizes = trainer.strategy.exchange({trainer.fabric.global_rank: len(trainer.client_store(_STORE))})
        if not any(sizes.values()):
            rank_zero_warn("LocalReference: the checkpoint contains no local models, its run did not train any.")
            return ClientMetrics()
        own = [metric for name, metric in metrics.items() if not name.startswith(f"{split}/forest/")]
        measured = {client for metric in own for client in metric.clients}
        reports: dict[int, Any] = {}
        for client in trainer.hosted_clients:
            if client in measured:  # neither absent nor beyond limit_val_clients
                report = trainer.loop.evaluator.evaluate(client, self._weights(trainer, client), split)
                if report is not None:
                    reports[client] = report.metrics
        return summarize(trainer.strategy.exchange(reports))

    def _from_run(self, trainer: TrainerSurface, split: Split, metrics: ClientMetrics) -> ClientMetrics:
        figures, names = self._figures.get(split, {}), trainer.datamodule.client_names()
        found = ClientMetrics(names=names)
        for name, metric in metrics.items():
            if (clients := figures.get(metric_name(name, split))) is not None:
                known = {client: clients.get(names[client]) for client in metric.clients}
                values = {client: value for client, value in known.items() if value is not None}  # None for NaN
                found[name] = MetricSummary.of(values, higher_is_better=metric.higher_is_better)
        return found

    def _weights(self, trainer: TrainerSurface, client: int) -> Weights:
        """A client's local model: in a fit the present one, else that of its best round if it is kept."""
        kept = None if trainer.round.fitting else trainer.client_store(_BEST).get(client)
        last = self._best.get(client)
        if kept and last and [kept["round"], kept["value"]] in last.get("history", ()):
            kept = last  # a later one of the same fit
        kept = kept or trainer.client_store(_STORE)[client]
        return Weights.from_state_dict(kept["weights"], trainer.fabric.device)


def _read_figures(run: Path, trainer: TrainerSurface) -> dict[str, dict[str, dict[str, float]]]:
    """Split -> metric -> client's name -> value, of a finished run on the same data."""
    path = run if run.is_file() else run / "summary.json"
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        figures = {
            split: {name: of["clients"] for name, of in metrics.items() if "percentiles" not in of}  # those of all
            for split, metrics in summary["metrics"].items()
        }
        data = summary["data"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"{path} is not the summary of a finished run ({type(error).__name__}: {error})"
        raise ConfigurationError(f"LocalReference.run={str(run)!r}: {what}. Name a run with LocalTraining.") from error
    own = json.loads(json.dumps(dict(trainer.datamodule.describe()), default=str))
    if different := sorted(key for key in own.keys() | data.keys() if own.get(key) != data.get(key)):
        what = f"its data differ from this run's in {', '.join(different)}"
        raise ConfigurationError(f"LocalReference.run={str(run)!r}: {what}. Use the same data and seed.")
    return figures
