"""PI-FL: clients bid for the tiers whose models serve their data, and average the tier models for their own goals.

Khan et al., "PI-FL: Personalized and Incentivized Federated Learning", 2023, https://arxiv.org/abs/2304.07514,
algorithms 1 and 3, equations 3 to 5. The mathematics is in :mod:`lightning_fl.functional.pifl`, contributions are
``ShapleyRewards``, payments ``TokenLedger``.

======================  =======================================================  ========
paper                   here                                                     shape
======================  =======================================================  ========
M_k, K tier models      ``trainer.models``, ``num_tiers``                        K x [P]
υ to bid by             ``importance``, on ``bid_split`` samples                 [N, K]
υ to average by         ``shares``, on ``personal_split`` samples                [N, K]
P_ck (equation 4)       ``trainer.client_model(c)``, its row of P                [P]
T_h, N_p, N_r           ``threshold``, ``num_best``, ``num_random``
θ_i, a client's bids    ``bids``
ζ_k, who trains         ``cohorts``
Acc_kr                  ``accuracies``, mean υ over those who trained the tier   [K]
P_r, ρ (equation 5)     ``pretraining_rounds``, ``rho``
======================  =======================================================  ========

Differs from the paper: an honest client that no tier is worth the threshold bids for the best one, unless its policy
says otherwise (``HonestBidding``). Whoever is drawn at random comes from all clients, and pays only if it bid; in the
first round, before there is anything to bid by, nobody pays. A client's personal model goes by samples of its own
choice, which may be of another kind than those it trains on. F1 scores are taken on samples of all clients, which stay
where they are, instead of a common test set.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from lightning_fl.callbacks.rewards.bidding import BiddingPolicy, BidView, HonestBidding
from lightning_fl.callbacks.rewards.shapley_rewards import ShapleyRewards
from lightning_fl.callbacks.rewards.tier_history import TierHistory
from lightning_fl.callbacks.rewards.token_ledger import TokenLedger
from lightning_fl.cohort import Cohort, Participant
from lightning_fl.collaboration import Collaboration
from lightning_fl.data.module import Split
from lightning_fl.engine.probes.class_scores import class_scores
from lightning_fl.engine.probes.client_scores import ClientScores
from lightning_fl.engine.probes.on_hosts import check_samples, compute_on_hosts
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.errors import ConfigurationError, TrainingError
from lightning_fl.functional.dpfl import shuffled
from lightning_fl.functional.pifl import initial_tiers, schedule
from lightning_fl.seeding import derive_seed
from lightning_fl.surface import TrainerSurface

__all__ = ["TierBidding"]

_PRETRAINING_ROUNDS = 5


class TierBidding(TierHistory):
    """K tier models; every round clients bid for tiers by how well the models serve their data.

    Of a tier's bidders those with the largest contributions train it (by ``ShapleyRewards``, where it is among the
    callbacks; at random otherwise), with some drawn from all clients; a client may train several tiers in a round, with
    the same batches. A tier that nobody trains stays as it is. What a client uses is the average of the tier models by
    its importance weights. Works with any strategy, with ``PersonalLayers`` (which have no part in tiers),
    ``ClientArrivals`` and failed clients. With ``optimizer_state="keep"`` a client has one optimiser for all its tiers.

    Writes ``tiers.csv``: each client's importance and share of every tier after the round, the place of the tier among
    its bids (0 for none), and whether it trained it as one of the "best" or at "random".

    Args:
        num_tiers: K, at most the number of clients.
        num_best: N_p, bidders with the largest contributions that train a tier.
        num_random: N_r, clients drawn at random that train a tier besides.
        threshold: T_h, between 0 and 1: an honest client bids for tiers with a larger importance weight, or for the
            best if there is none.
        policy: how clients bid; default ``HonestBidding``.
        policies: client's number -> its policy, for those that bid otherwise.
        initial_tiers: who trains what in the first round: "random" deals clients out; "f1" lets every client train
            alone first and groups them by the classes that their models know.
        initial_rounds: rounds, at least 1, for which clients stay in these tiers before they bid, N_p + N_r of each in
            turn: what the models are worth is known only when they have learned something. Who arrives meanwhile gets a
            tier at random.
        pretraining_rounds: of "f1", default 5: turns that each client trains alone.
        rho: of "f1": how many of the most varying classes are compared; default all.
        f1_samples: of "f1": samples of each client on which all models are scored; default all.
        monitor: validation metric that scores a model: a share such as an accuracy, or a loss x as ``exp(-x)``.
            Default: the first of which more is better, else the first loss.
        bid_split: samples that bids go by, "train" or "val".
        personal_split: samples that personal models go by; a client that has none goes by those of its bids.
        num_samples: of each client and use, drawn anew every round; ``None`` for all.

    Raises:
        ConfigurationError: a value is out of range or has no meaning; at the start of a run, there are more tiers than
            clients, a policy is for nobody, or the module has no ``validation_step``; later, a metric gives no score, a
            policy names a tier that does not exist, or F1 scores need classes that the module does not predict.
        TrainingError: nobody trains any tier.
    """

    role = "collaboration"

    def __init__(
        self,
        *,
        num_tiers: int,
        num_best: int = 5,
        num_random: int = 1,
        threshold: float = 0.5,
        policy: BiddingPolicy | None = None,
        policies: dict[int, BiddingPolicy] | None = None,
        initial_tiers: Literal["random", "f1"] = "random",
        initial_rounds: int = 1,
        pretraining_rounds: int | None = None,
        rho: int | None = None,
        f1_samples: int | None = None,
        monitor: str | None = None,
        bid_split: Literal["train", "val"] = "train",
        personal_split: Literal["train", "val"] = "val",
        num_samples: int | None = 256,
    ) -> None:
        for name, value in (("num_tiers", num_tiers), ("initial_rounds", initial_rounds), ("num_samples", num_samples)):
            if value is not None and value < 1:
                raise ConfigurationError(f"TierBidding.{name}={value}: give a number of at least 1.")
        if num_best < 0 or num_random < 0 or not num_best + num_random:
            raise ConfigurationError(
                f"TierBidding.num_best={num_best}, num_random={num_random}: give numbers of at least 0, one of them at"
                " least 1."
            )
        if not 0 <= threshold <= 1:
            raise ConfigurationError(
                f"TierBidding.threshold={threshold}: importance weights lie between 0 and 1, so must it."
            )
        if initial_tiers not in ("random", "f1"):
            raise ConfigurationError(f"TierBidding.initial_tiers={initial_tiers!r}: choose random or f1.")
        for name, value in (("pretraining_rounds", pretraining_rounds), ("rho", rho), ("f1_samples", f1_samples)):
            if value is not None and initial_tiers != "f1":
                raise ConfigurationError(
                    f"TierBidding.{name}={value} has no meaning for initial_tiers={initial_tiers!r}: leave it out, or"
                    " set initial_tiers=f1."
                )
            if value is not None and value < 1:
                raise ConfigurationError(f"TierBidding.{name}={value}: give a number of at least 1.")
        for name, split in (("bid_split", bid_split), ("personal_split", personal_split)):
            if split not in ("train", "val"):
                raise ConfigurationError(
                    f"TierBidding.{name}={split!r}: choose train or val; test samples are for the end."
                )
        super().__init__(num_tiers)
        self.num_best = num_best
        self.num_random = num_random
        self.threshold = threshold
        self.policy = policy or HonestBidding()
        self.policies = policies or {}
        self.initial_tiers = initial_tiers
        self.initial_rounds = initial_rounds
        self.pretraining_rounds = pretraining_rounds or _PRETRAINING_ROUNDS
        self.rho = rho
        self.f1_samples = f1_samples
        self.monitor = monitor
        self.bid_split: Split = bid_split
        self.personal_split: Split = personal_split
        self.num_samples = num_samples

    # -- a run ---------------------------------------------------------------------------------------------------

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        """Give every tier the initial model."""
        self._reset()
        count = trainer.num_clients
        if self.num_tiers > count:
            raise ConfigurationError(
                f"TierBidding.num_tiers={self.num_tiers} for {count} clients: give at most one tier a client."
            )
        if not set(self.policies) <= set(range(count)):
            raise ConfigurationError(
                f"TierBidding.policies are for the clients {sorted(self.policies)}: there are 0..{count - 1} only."
            )
        self._scores(trainer, self.bid_split)  # refuses a module that validates nothing
        check_samples(trainer.loop, "TierBidding.bid_split", self.bid_split)
        beta = torch.tensor(trainer.num_samples, dtype=torch.float64)
        aggregation = (beta / beta.sum()).expand(self.num_tiers, count)
        trainer.collaboration = Collaboration(
            aggregation, torch.full((count, self.num_tiers), 1 / self.num_tiers, dtype=torch.float64)
        )

    def select_clients(self, trainer: TrainerSurface) -> Cohort:
        """Bids in, the clients of every tier out; those who bid and were chosen pay."""
        present = _present(trainer)
        payments = self._payments(trainer)
        if payments is not None:
            payments.begin_round(trainer)
        tiers = range(self.num_tiers)
        if trainer.current_round < self.initial_rounds:
            bids: dict[int, list[int]] = {}
            self._place(trainer, present)
            best, drawn, contributions = 0, self.num_best + self.num_random, {}
            available = [[client for client in present if client in self.members[tier]] for tier in tiers]
        else:
            bids = self._bids(trainer, present, payments)
            best, drawn, contributions = self.num_best, self.num_random, self._contributions(trainer)
            available = [present] * self.num_tiers
        cohorts = [
            schedule(
                [client for client in present if tier in bids.get(client, ())],
                contributions.get(tier, {}),
                best,
                drawn,
                trainer.generator("cohort", tier),
                available=available[tier],
            )
            for tier in tiers
        ]
        if not any(cohort.clients for cohort in cohorts):
            raise TrainingError(
                f"nobody bids for any tier in round {trainer.current_round + 1}: lower TierBidding.threshold, give"
                " clients more tokens, or set TierBidding.num_random=1 so that clients are drawn without a bid."
            )
        if payments is not None:
            payments.collect(
                trainer,
                {
                    tier: [client for client in cohort.clients if tier in bids.get(client, ())]
                    for tier, cohort in enumerate(cohorts)
                },
            )
        self.rounds.append(trainer.current_round + 1)
        self.bids.append({client: of_client for client, of_client in bids.items() if of_client})
        self.cohorts.append({tier: cohort._asdict() for tier, cohort in enumerate(cohorts)})
        for tier, cohort in enumerate(cohorts):
            trainer.log(f"tier/{tier}/clients", len(cohort.clients))
            trainer.log(f"tier/{tier}/bidders", sum(tier in of_client for of_client in bids.values()))
        samples = torch.tensor(trainer.num_samples, dtype=torch.float64)
        beta = (samples / samples.sum()).tolist()
        return Cohort(
            tuple(
                Participant(client, tier, beta[client])
                for tier, cohort in enumerate(cohorts)
                for client in cohort.clients
            )
        )

    def on_average_end(
        self, trainer: TrainerSurface, starts: Sequence[Weights], shares: Mapping[int, Mapping[int, float]]
    ) -> None:
        """Keep whose updates arrived."""
        self._contributors = {tier: dict(of_tier) for tier, of_tier in shares.items()}

    def on_aggregate_end(self, trainer: TrainerSurface) -> None:
        """Score the new tier models, settle the payments, and set who uses what."""
        raw, shares = self._importance(trainer, _present(trainer), self.bid_split)
        accuracies = [
            float(raw[list(self._contributors[tier]), tier].mean()) if tier in self._contributors else float("nan")
            for tier in range(self.num_tiers)
        ]
        self.importance.append(raw)
        self.accuracies.append(accuracies)
        for tier in self._contributors:
            trainer.log(f"tier/{tier}/accuracy", accuracies[tier])
        payments = self._payments(trainer)
        if payments is not None:
            payments.settle(trainer, self._contributions(trainer, trainer.current_round + 1), accuracies)
        aggregation = trainer.collaboration.aggregation.clone()
        for tier, of_tier in self._contributors.items():
            aggregation[tier] = 0.0
            aggregation[tier, list(of_tier)] = torch.tensor(list(of_tier.values()), dtype=torch.float64)
        trainer.collaboration = Collaboration(aggregation, trainer.collaboration.personalisation)
        done = trainer.current_round + 1
        if done == trainer.max_rounds or trainer.evaluates_after(done):
            self._personalise(trainer, done, shares)
        self.shares.append(trainer.collaboration.personalisation.clone())

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        """Personal models of a run that ended early; ``tiers.csv`` and the summary."""
        if trainer.current_round != self._personal_round and self.rounds:
            shares = self._importance(trainer, _present(trainer), self.bid_split)[1]
            self._personalise(trainer, trainer.current_round, shares)
            self.shares[-1] = trainer.collaboration.personalisation.clone()
        self._write(trainer)

    # -- who trains what -----------------------------------------------------------------------------------------

    def _place(self, trainer: TrainerSurface, present: list[int]) -> None:
        """Put everybody who is there for the first time into one tier."""
        if self.members:
            for client in set(present).difference(*self.members.values()):  # nothing is known of a newcomer
                tier = shuffled(range(self.num_tiers), trainer.generator("first tier", client))[0]
                self.members[tier] = sorted([*self.members[tier], client])
            return
        if self.initial_tiers == "random" or self.num_tiers == 1:
            order = shuffled(present, trainer.generator("first tiers"))
            self.members = {tier: sorted(order[tier :: self.num_tiers]) for tier in range(self.num_tiers)}
            return
        scores = class_scores(
            trainer.loop,
            present,
            num_rounds=self.pretraining_rounds,
            splits=(self.personal_split, self.bid_split, "train"),
            num_samples=self.f1_samples,
        )
        seed = derive_seed(trainer.seed, "first tiers")
        labels = initial_tiers(scores, self.num_tiers, self.rho or scores.shape[1], seed)
        self.members = {
            tier: [client for client, label in zip(present, labels, strict=True) if label == tier]
            for tier in range(self.num_tiers)
        }

    def _bids(self, trainer: TrainerSurface, present: list[int], ledger: TokenLedger | None) -> dict[int, list[int]]:
        """client -> tiers, as its policy says where its data are."""
        importance = self.importance[-1]
        newcomers = [client for client in present if importance[client].isnan().any()]
        if newcomers:
            importance = importance.clone()
            importance[newcomers] = self._importance(trainer, newcomers, self.bid_split)[0][newcomers]

        def bid(client: int) -> list[int]:
            policy = self.policies.get(client, self.policy)
            view = BidView(
                client=client,
                round=trainer.current_round + 1,
                importance=tuple(importance[client].tolist()),
                past_rewards=(0,) * self.num_tiers if ledger is None else ledger.past_rewards(client, self.num_tiers),
                threshold=self.threshold,
                balance=None if ledger is None else ledger.balance(client),
                price=0 if ledger is None else ledger.price_units,
            )
            tiers = policy.bid(view, trainer.generator("bid", client))
            if len(set(tiers)) != len(tiers) or not set(tiers) <= set(range(self.num_tiers)):
                raise ConfigurationError(
                    f"{type(policy).__name__} bids for the tiers {list(tiers)}: let it name distinct ones of"
                    f" 0..{self.num_tiers - 1}."
                )
            return [int(tier) for tier in tiers][: view.num_affordable]

        return compute_on_hosts(trainer.processes, present, bid, "bidding failed")

    def _contributions(self, trainer: TrainerSurface, since: int = 1) -> dict[int, dict[int, float]]:
        """tier -> client -> its last ψ there in the rounds since one; 0 where nothing is valued."""
        rewards = next((one for one in trainer.callbacks if isinstance(one, ShapleyRewards)), None)
        if rewards is None:
            return {tier: dict.fromkeys(of_tier, 0.0) for tier, of_tier in self._contributors.items()}
        latest: dict[int, dict[int, float]] = {}
        for done, models in zip(rewards.rounds, rewards.by_model, strict=True):
            if done >= since:
                for tier, values in models.items():
                    latest.setdefault(tier, {}).update(values)
        return latest

    # -- importance, personal models -----------------------------------------------------------------------------

    def _scores(self, trainer: TrainerSurface, split: Split) -> ClientScores:
        return ClientScores(trainer.loop, "TierBidding", split, self.num_samples, self.monitor)

    def _importance(self, trainer: TrainerSurface, clients: list[int], split: Split) -> tuple[Tensor, Tensor]:
        """υ and its shares of some clients [N, K]; NaN for the others, and for those without samples in the split."""
        scores = self._scores(trainer, split)
        trainer.communication.receive(clients, trainer.models)

        def weigh(client: int) -> tuple[list[float], list[float]] | None:
            if not scores.has_samples(client):
                return None
            found = scores.importance(client, trainer.models)
            return found.raw.tolist(), found.shares.tolist()

        raw = torch.full((trainer.num_clients, self.num_tiers), float("nan"), dtype=torch.float64)
        shares = raw.clone()
        for client, found in compute_on_hosts(
            trainer.processes, clients, weigh, "TierBidding cannot score the tiers"
        ).items():
            if found is not None:
                raw[client], shares[client] = (torch.tensor(row, dtype=torch.float64) for row in found)
        return raw, shares

    def _personalise(self, trainer: TrainerSurface, done: int, bid_shares: Tensor) -> None:
        """P from what the models are worth for the clients' own goals."""
        shares = bid_shares
        if self.personal_split != self.bid_split:
            own = self._importance(trainer, _present(trainer), self.personal_split)[1]
            shares = torch.where(own.isnan(), bid_shares, own)
        old = trainer.collaboration
        shares = torch.where(shares.isnan(), old.personalisation, shares)
        trainer.collaboration = Collaboration(old.aggregation, shares)
        self._personal_round = done

    @staticmethod
    def _payments(trainer: TrainerSurface) -> TokenLedger | None:
        return next((one for one in trainer.callbacks if isinstance(one, TokenLedger)), None)


def _present(trainer: TrainerSurface) -> list[int]:
    """Who can bid and train."""
    return [client for client in trainer.present_clients if client not in trainer.resting_clients]
