"""What every client is worth to the models that it took part in, round by round: Shapley values.

Khan et al., "PI-FL: Personalized and Incentivized Federated Learning", 2023, https://arxiv.org/abs/2304.07514,
algorithm 2, equations 1, 2 and 18 to 23. The mathematics is in :mod:`lightning_fl.functional.shapley`.

==================  ========================================================  ============
paper               here                                                      shape
==================  ========================================================  ============
M, a tier           a shared model and the clients averaged into it
W_M                 the model after the average                               [P]
W_i                 what client i learned                                     [P]
lambda_i            its share of the average, summing to 1                    [N_M]
gamma_M             gradient of the held-out loss at W_M                      [P]
psi_i               ``by_model``, ``values``, in units of the loss            [N_M]
==================  ========================================================  ============

Differs from the paper: the held-out data are the clients' own, so that none leaves a client: the loss is the mean over
the clients in the average of each one's mean loss. What is projected on the gradient are updates from the model before
the round, which gives the same normalised values as models, and unnormalised ones that sum to the loss's drop to first
order.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.client_names import curve_names
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.escaping import csv_table
from lightning_fl.core.validation import check_counts, warn_beyond_end
from lightning_fl.engine.probes.on_hosts import check_split, clients_without
from lightning_fl.engine.probes.valuation import ModelValuation
from lightning_fl.engine.turn.held_out_loss import HeldOutLoss
from lightning_fl.engine.turn.module_checks import refuse_manual_steps
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.functional.shapley import shapley_exact, shapley_permutations
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["ShapleyRewards"]

_METHODS = ("first_order", "exact", "permutations")
#: 2^10 coalitions, each a pass over every participant's held-out samples.
_MOST_EXACT = 10
_PERMUTATIONS = 100


class ShapleyRewards(Callback):
    """Values each participant's contribution to the aggregate of the round, per round and cumulated.

    The training itself is not changed by a bit. Works with any strategy, with sampled and failed clients (who is not
    in the average is not valued), with coalitions (values are taken within each shared model, a client's are summed
    over models) and with ``PersonalLayers`` (which have no part in it). From a client's turn to the average, its
    weights are kept on its rank: one model more per hosted participant.

    Logged are ``contribution/CLIENT`` and ``contribution/cumulated/CLIENT`` where clients have curves of their own
    (``trainer.log_per_client``), and ``contribution/mean``, ``/min`` and ``/max``; ``contributions.csv`` has all values
    and ``summary.json`` the cumulated ones with each client's rank.

    Args:
        method: "first_order": one gradient a model, forward and backward over the samples. "exact": all coalitions of
            at most 10 clients of a model. "permutations": coalitions of random orders in which clients join.
        normalized: values against the average client, ``-<∇L, lambda_i (W_i - W_M)>``, which sum to 0; or against a
            client that learned nothing, ``-<∇L, lambda_i (W_i - W_start)>``, which sum to the drop of the loss to first
            order. Exact and permuted values sum to the drop in both cases: a coalition's model is its members' average
            with lambda normalised within it, or the start plus their shares of the update.
        split: held-out samples are those of "val"; "train" for data without validation samples, or with some of
            another kind, where a client that fits its own errors is flattered unless ``leave_own_out``.
        leave_own_out: judge each client by the samples of the model's other participants only, so that who fits its own
            errors is not flattered, also with ``split: train``. With "first_order" only. Values then sum neither to 0
            nor to the drop of the loss. Who is alone is judged by its own.
        num_samples: of each client, by which a round is judged, drawn anew in every round: the loss and its gradient
            are estimates of those on all held-out samples. ``None`` for all.
        num_permutations: of "permutations", even, at least 4; default 100.
        every_n_rounds: value every n-th round only.

    Raises:
        ConfigurationError: an argument is out of range or has no meaning for the method; at the start of a run, no
            round would be valued, the module optimises manually, a client has no held-out data, clients choose whose
            models they take in (``CollaborationGraph``), or a model has too many participants for "exact" (where
            participants are drawn, after the first round that has).
        TrainingError: a client's held-out loss or its gradient is not finite.
    """

    role = "contribution"

    def __init__(
        self,
        *,
        method: Literal["first_order", "exact", "permutations"] = "first_order",
        normalized: bool = True,
        split: Literal["val", "train"] = "val",
        leave_own_out: bool = False,
        num_samples: int | None = 256,
        num_permutations: int | None = None,
        every_n_rounds: int = 1,
    ) -> None:
        if method not in _METHODS:
            raise ConfigurationError(f"ShapleyRewards.method={method!r}: choose one of {', '.join(_METHODS)}.")
        check_split("ShapleyRewards.split", split)
        check_counts(self, num_samples=num_samples, every_n_rounds=every_n_rounds)
        check_counts(self, num_permutations=num_permutations)
        if num_permutations is not None and method != "permutations":
            raise ConfigurationError(
                f"ShapleyRewards.num_permutations={num_permutations} has no meaning for method={method!r}: leave it"
                " out, or set method=permutations."
            )
        if leave_own_out and method != "first_order":
            raise ConfigurationError(
                f"ShapleyRewards.leave_own_out=True has no meaning for method={method!r}, whose coalitions are judged"
                " by all participants: leave it out, or set method=first_order."
            )
        if num_permutations is not None and (num_permutations < 4 or num_permutations % 2):
            raise ConfigurationError(
                f"ShapleyRewards.num_permutations={num_permutations}: they come in pairs, give an even number >= 4."
            )
        self.method = method
        self.normalized = normalized
        self.split = split
        self.leave_own_out = leave_own_out
        self.num_samples = num_samples
        self.num_permutations = num_permutations
        self.every_n_rounds = every_n_rounds
        self._reset()

    def _reset(self) -> None:
        #: Rounds done when each entry of :attr:`by_model` was made.
        self.rounds: list[int] = []
        #: In each valued round, model -> client -> psi.
        self.by_model: list[dict[int, dict[int, float]]] = []
        self._kept: dict[tuple[int, int | None], Weights] = {}
        #: Turns whose mean is kept.
        self._turns: dict[tuple[int, int | None], int] = {}

    @property
    def values(self) -> list[dict[int, float]]:
        """In each valued round, client -> psi, summed over models."""
        return [_sum_over_models(models) for models in self.by_model]

    @property
    def cumulated(self) -> dict[int, float]:
        """Client -> the sum of its values so far; those who were never valued are not in it."""
        totals: dict[int, float] = {}
        for values in self.values:
            for client, value in values.items():
                totals[client] = totals.get(client, 0.0) + value
        return dict(sorted(totals.items()))

    # -- a run ---------------------------------------------------------------------------------------------------

    def setup(self, trainer: TrainerSurface, stage: str) -> None:
        """Refuse what cannot work before anything is read."""
        if stage != "fit":
            return
        if self.every_n_rounds > trainer.max_rounds:
            raise ConfigurationError(
                f"ShapleyRewards.every_n_rounds={self.every_n_rounds}: a run of {trainer.max_rounds} rounds would value"
                " none of them; give a smaller number."
            )
        choosers = trainer.callbacks_with("select_collaborators")
        if choosers:
            raise ConfigurationError(
                f"ShapleyRewards values contributions to shared models, and {type(choosers[0]).__name__} gives every"
                " client a model of its own: leave one of the two out of trainer.callbacks."
            )

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        """Forget an earlier run; check that there is a loss, and something to take it on."""
        self._reset()
        warn_beyond_end(self, trainer.max_rounds, every_n_rounds=self.every_n_rounds)
        refuse_manual_steps(trainer.loop.module, "ShapleyRewards")
        missing = clients_without(trainer.loop, self.split, range(trainer.num_clients))
        if missing:
            raise ConfigurationError(
                f"ShapleyRewards values contributions by held-out loss, and {len(missing)} of {trainer.num_clients}"
                f" clients have no validation data (the first is {missing[0]}): give the data a validation"
                " split, or set ShapleyRewards.split=train."
            )

    def on_round_start(self, trainer: TrainerSurface) -> None:
        """Check that all coalitions can be gone through, where it is known who will take part."""
        self._kept.clear()
        chosen = [*trainer.callbacks_with("select_clients"), *trainer.callbacks_with("select_collaboration")]
        if self.method != "exact" or chosen:
            return
        present = set(trainer.present_clients) - trainer.federation.resting_clients
        for row in trainer.federation.collaboration.aggregation.tolist():
            self._check_number(sum(weight > 0 and client in present for client, weight in enumerate(row)))

    def on_client_end(self, trainer: TrainerSurface, client: int) -> None:
        """Keep what the client learned until the models are averaged."""
        if self._due(trainer):
            part = trainer.round.participant
            assert part is not None
            learned, key = trainer.client_weights().clone(), (client, part.model)
            if part.draw and key in self._kept:  # of a client drawn several times: the mean of its turns
                turns = self._turns[key] = self._turns[key] + 1
                for dtype, vector in learned.floating():
                    before = self._kept[key].vectors[dtype]
                    vector.sub_(before).div_(turns).add_(before)
            else:
                self._turns[key] = 1
            self._kept[key] = learned

    def on_average_end(
        self, trainer: TrainerSurface, starts: Sequence[Weights], shares: Mapping[int, Mapping[int, float]]
    ) -> None:
        """Value the round, model by model."""
        if not self._due(trainer):
            return
        loss = HeldOutLoss(trainer.loop, self.split, self.num_samples, "shapley")
        models = {}
        for model, of_clients in shares.items():
            learned = {client: kept for (client, of), kept in self._kept.items() if of in (None, model)}
            valuation = ModelValuation(
                trainer.loop, loss, starts[model], trainer.federation.models[model], of_clients, learned
            )
            models[model] = self._value(trainer, model, valuation)
        self._kept.clear()
        self.rounds.append(trainer.federation.current_round + 1)
        self.by_model.append(models)
        self._log(trainer)

    def on_exception(self, trainer: TrainerSurface, exception: BaseException) -> None:
        """Keep no weights."""
        self._kept.clear()

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        """Write all values, and the cumulated ones into the summary."""
        if not trainer.is_global_zero:
            return
        import pandas as pd  # takes a second to import

        names = trainer.datamodule.client_names()
        columns = ["round", "model", "client", "psi", "cumulated"]
        table = pd.DataFrame(self._rows(names), columns=columns)
        trainer.run_log.write("contributions.csv", csv_table(table))
        cumulated = self.cumulated
        order = sorted(cumulated, key=lambda client: (-cumulated[client], client))
        trainer.run_log.summary["contributions"] = {
            "method": self.method,
            "normalized": self.normalized,
            "rounds": len(self.rounds),
            "clients": {
                names[client]: {"cumulated": cumulated[client], "rank": rank}
                for rank, client in enumerate(order, start=1)
            },
        }

    def state_dict(self) -> dict[str, Any]:
        """All values."""
        return {"rounds": self.rounds, "by_model": self.by_model}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the values."""
        self.rounds = list(state["rounds"])
        self.by_model = [{model: dict(values) for model, values in models.items()} for models in state["by_model"]]

    # -- its parts -----------------------------------------------------------------------------------------------

    def _due(self, trainer: TrainerSurface) -> bool:
        return (trainer.federation.current_round + 1) % self.every_n_rounds == 0

    def _value(self, trainer: TrainerSurface, model: int, valuation: ModelValuation) -> dict[int, float]:
        """Client -> psi in one model."""
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
            raise ConfigurationError(
                f"ShapleyRewards.method='exact' goes through 2^n coalitions of a model's n participants, at most"
                f" {_MOST_EXACT}, and a model has {num_participants}: set method=permutations or method=first_order."
            )

    def _log(self, trainer: TrainerSurface) -> None:
        values = self.values[-1]
        if not values:
            return
        trainer.log("contribution/mean", sum(values.values()) / len(values))
        trainer.log("contribution/min", min(values.values()))
        trainer.log("contribution/max", max(values.values()))
        if trainer.logs_clients:
            names = curve_names(trainer.datamodule.client_names())
            for client, value in values.items():
                trainer.log(f"contribution/{names[client]}", value)
            for client, value in self.cumulated.items():
                trainer.log(f"contribution/cumulated/{names[client]}", value)

    def _rows(self, names: Sequence[str]) -> list[tuple[int, int, str, float, float]]:
        """(round, model, client, psi, cumulated over all models up to this round)."""
        rows, totals = [], dict.fromkeys(range(len(names)), 0.0)
        for done, models, values in zip(self.rounds, self.by_model, self.values, strict=True):
            for client, value in values.items():
                totals[client] += value
            for model, of_clients in models.items():
                rows += [(done, model, names[client], psi, totals[client]) for client, psi in of_clients.items()]
        return rows


def _sum_over_models(models: Mapping[int, Mapping[int, float]]) -> dict[int, float]:
    totals: dict[int, float] = {}
    for values in models.values():
        for client, value in values.items():
            totals[client] = totals.get(client, 0.0) + value
    return dict(sorted(totals.items()))
