"""Shapley values of the clients' contributions to the models of every round.

Khan et al., "PI-FL: Personalized and Incentivized Federated Learning", 2023, https://arxiv.org/abs/2304.07514,
algorithm 2, equations 1, 2 and 18 to 23. The mathematics is in :mod:`lightning_fl.functional.shapley`.

Differs from the paper: the held-out data are the clients' own, so no data leave a client: the loss is the mean over the
clients in the average of each one's mean loss. Updates since the model before the round are projected on the gradient:
normalised values are the same as for models, and unnormalised ones sum to the first-order decrease of the loss.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Literal

from lightning_fl.callbacks.callback import Callback, Drawings
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, checked_fields, warn_beyond_end
from lightning_fl.engine.probes.on_hosts import check_samples
from lightning_fl.engine.probes.valuation import ModelValuation
from lightning_fl.engine.turn.gradients import HeldOutLoss
from lightning_fl.engine.turn.services import refuse_manual_steps
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.functional.shapley import Permutations, shapley_exact, shapley_permutations
from lightning_fl.runtime.surface import TrainerSurface

#: 2^10 coalitions at most, each a pass over every participant's held-out samples.
_MOST_EXACT = 10
_PERMUTATIONS = 100


@checked_fields
class ShapleyRewards(Callback):
    """Values each participant's contribution to the average of the round, per round and cumulated.

    Training is not changed. Works with any strategy, with sampled and failed clients (clients outside the average have
    no value), with coalitions (values within each shared model, summed over models) and ``PersonalLayers`` (left out).
    Keeps one model per hosted participant until the average.

    Logs ``contribution``, writes all values to ``contributions.csv``, and sums with ranks to ``summary.json``.

    Args:
        method: "first_order": one gradient per model. "exact": all coalitions of at most 10 clients of a model.
            "permutations": coalitions of random orders in which clients join.
        normalized: values relative to the average client, ``-<∇L, lambda_i (W_i - W_M)>``, with sum 0; otherwise
            relative to a client that learned nothing, ``-<∇L, lambda_i (W_i - W_start)>``, with the first-order
            decrease of the loss as sum. Exact and permuted values sum to the average's decrease in both cases: the
            model of a coalition is its members' lambda-weighted mean, or the start plus their shares of the update.
        split: split of the held-out samples; "train" for data without (suitable) validation samples, where
            ``leave_own_out`` avoids a bias for clients that fit their own errors.
        leave_own_out: value each client only on samples of the model's other participants, for "first_order". Values
            then sum neither to 0 nor to the decrease of the loss. A single participant is valued on its own samples.
        num_samples: held-out samples of each client, redrawn in every round; ``None`` for all.
        num_permutations: for "permutations", an even number of at least 4; default 100.
        every_n_rounds: rounds between valuations.

    Raises:
        ConfigurationError: an argument is out of range or does not fit the method; at the start of a run, no round
            would be valued, the module optimises manually, a client has no held-out data, every client has its own
            model (``CollaborationGraph``), or a model has too many participants for "exact" (if participants are drawn,
            after the first such round).
        TrainingError: a client's held-out loss or its gradient is not finite.
    """

    role = "contribution"
    saved = ("rounds", "by_model")

    method: Literal["first_order", "exact", "permutations"] = "first_order"
    normalized: bool = True
    split: Literal["val", "train"] = "val"
    leave_own_out: bool = False
    num_samples: Count | None = 256
    num_permutations: Permutations | None = None
    every_n_rounds: Count = 1

    def __post_init__(self) -> None:
        for option, method in (("num_permutations", "permutations"), ("leave_own_out", "first_order")):
            if (value := getattr(self, option)) and self.method != method:
                raise ConfigurationError(f"ShapleyRewards.{option}={value}: not for method={self.method!r}; omit it.")
        if self.num_permutations is not None and self.num_permutations % 2:
            raise ConfigurationError(f"ShapleyRewards.num_permutations={self.num_permutations}: must be even.")
        #: Number of finished rounds at each entry of :attr:`by_model`.
        self.rounds: list[int] = []
        #: In each valued round, model -> client -> psi.
        self.by_model: list[dict[int, dict[int, float]]] = []
        self._kept: dict[tuple[int, int | None], Weights] = {}
        #: Number of turns in each kept mean.
        self._turns: dict[tuple[int, int | None], int] = {}

    @property
    def values(self) -> list[dict[int, float]]:
        """In each valued round, client -> psi, summed over models."""
        return [_summed(models.values()) for models in self.by_model]

    @property
    def cumulated(self) -> dict[int, float]:
        """Client -> sum of its values so far, without clients that were never valued."""
        return _summed(self.values)

    def setup(self, trainer: TrainerSurface, stage: str) -> None:
        if stage != "fit":
            return
        if self.every_n_rounds > (most := trainer.max_rounds):
            raise ConfigurationError(f"ShapleyRewards.every_n_rounds={self.every_n_rounds}: must be at most {most}.")
        if choosers := [type(one).__name__ for one in trainer.callbacks if "model_per_client" in one.traits]:
            raise ConfigurationError(f"ShapleyRewards values shared models, {choosers[0]} has none: remove one.")

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        self.__post_init__()
        warn_beyond_end(self, trainer.max_rounds, every_n_rounds=self.every_n_rounds)
        refuse_manual_steps(trainer.loop.module, "ShapleyRewards")
        check_samples(trainer.loop, "ShapleyRewards.split", self.split)

    def on_round_start(self, trainer: TrainerSurface) -> None:
        """Check the number of coalitions, if participants are known."""
        self._kept.clear()
        chosen = [*trainer.callbacks_with("select_clients"), *trainer.callbacks_with("select_collaboration")]
        if self.method != "exact" or chosen:
            return
        present = set(trainer.present_clients) - trainer.federation.resting_clients
        for row in trainer.federation.collaboration.aggregation.tolist():
            self._check_number(sum(weight > 0 and client in present for client, weight in enumerate(row)))

    def on_client_end(self, trainer: TrainerSurface, client: int) -> None:
        """Keep the client's weights until the average."""
        if self._due(trainer):
            part = trainer.round.participant
            assert part is not None
            learned, key = trainer.client_weights().clone(), (client, part.model)
            if part.draw and key in self._kept:  # mean over the turns of a client drawn several times
                turns = self._turns[key] = self._turns[key] + 1
                for dtype, vector in learned.floating():
                    before = self._kept[key].vectors[dtype]
                    vector.sub_(before).div_(turns).add_(before)
            else:
                self._turns[key] = 1
            self._kept[key] = learned

    def on_aggregate_end(self, trainer: TrainerSurface) -> None:
        starts, shares = trainer.round.starts, trainer.round.shares
        if not self._due(trainer) or not starts:
            return
        loss = HeldOutLoss(trainer.loop, self.split, self.num_samples, "shapley")
        models = {}
        for model, of_clients in shares.items():
            learned = {client: kept for (client, of), kept in self._kept.items() if of in (None, model)}
            average = trainer.federation.models[model]
            valuation = ModelValuation(trainer.loop, loss, starts[model], average, of_clients, learned)
            models[model] = self._value(trainer, model, valuation)
        self._kept.clear()
        self.rounds.append(trainer.federation.current_round + 1)
        self.by_model.append(models)
        if values := self.values[-1]:
            trainer.log_clients("contribution", values)
            trainer.log_each_client("contribution/cumulated", self.cumulated)

    def on_exception(self, trainer: TrainerSurface, exception: BaseException) -> None:
        self._kept.clear()

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        names, rows, totals = trainer.client_names, [], dict.fromkeys(range(trainer.num_clients), 0.0)
        for done, models, values in zip(self.rounds, self.by_model, self.values, strict=True):
            for client, value in values.items():
                totals[client] += value
            for model, of_clients in models.items():
                rows += [(done, model, names[client], psi, totals[client]) for client, psi in of_clients.items()]
        trainer.write_table("contributions.csv", ("round", "model", "client", "psi", "cumulated"), rows)
        cumulated = self.cumulated
        ranked = enumerate(sorted(cumulated, key=lambda client: (-cumulated[client], client)), start=1)
        trainer.run_log.summary["contributions"] = {
            "method": self.method,
            "normalized": self.normalized,
            "rounds": len(self.rounds),
            "clients": {names[client]: {"cumulated": cumulated[client], "rank": rank} for rank, client in ranked},
        }

    def figures(self, trainer: TrainerSurface, stage: str) -> Drawings:
        """Cumulated values over rounds and as sorted bars; of several models, also the sums of each."""
        import pandas as pd

        from lightning_fl.callbacks.figures.plots import run, tiers

        if stage != "fit" or not any(self.by_model):
            return
        clients, names = range(trainer.num_clients), trainer.client_names
        method = f"{self.method.replace('_', ' ')}{', normalised' if self.normalized else ''}"
        title, unit = f"Contributions up to round {trainer.federation.current_round}", "(units of the loss)"
        table = pd.DataFrame(self.values).reindex(columns=clients).cumsum().ffill()  # NaN before the first value
        words = {"title": f"{title}: Shapley values, {method}", "ylabel": f"cumulated contribution {unit}"}
        yield "contributions", partial(run.draw_contributions, self.rounds, table, names, **words)
        last = max(model for models in self.by_model for model in models)  # there may be fewer models now
        if (num_models := max(last + 1, trainer.federation.collaboration.num_models)) > 1:
            by_model = pd.concat(map(pd.DataFrame, self.by_model)).groupby(level=0).sum(min_count=1)
            sums = by_model.reindex(index=clients, columns=range(num_models))
            words = {"title": title, "label": f"cumulated Shapley value {unit}"}
            yield "tier_contributions", partial(tiers.draw_tier_contributions, sums, names, **words)

    def _due(self, trainer: TrainerSurface) -> bool:
        return (trainer.federation.current_round + 1) % self.every_n_rounds == 0

    def _value(self, trainer: TrainerSurface, model: int, valuation: ModelValuation) -> dict[int, float]:
        """Client -> psi within a model."""
        if self.method == "first_order":
            return valuation.first_order(self.normalized, self.leave_own_out)
        clients = list(valuation.shares)
        value = valuation.coalition_value(self.normalized)
        if self.method == "exact":
            self._check_number(len(clients))
            found = shapley_exact(value, len(clients))
        else:
            draws = trainer.generator("shapley", model)
            number = self.num_permutations or _PERMUTATIONS
            estimate = shapley_permutations(value, len(clients), draws, num_permutations=number)
            name = "contribution/standard_error"
            trainer.log(name, max(trainer.round.logged.get(name, 0.0), float(estimate.standard_errors.max())))
            found = estimate.values
        return dict(zip(clients, found.tolist(), strict=True))

    def _check_number(self, num_participants: int) -> None:
        if num_participants > _MOST_EXACT:
            allowed = f"{_MOST_EXACT} participants of a model, but one has {num_participants}"
            raise ConfigurationError(f"ShapleyRewards.method='exact' allows {allowed}: choose another method.")


def _summed(parts: Iterable[Mapping[int, float]]) -> dict[int, float]:
    """Client -> sum of its values."""
    totals: dict[int, float] = {}
    for values in parts:
        for client, value in values.items():
            totals[client] = totals.get(client, 0.0) + value
    return dict(sorted(totals.items()))
