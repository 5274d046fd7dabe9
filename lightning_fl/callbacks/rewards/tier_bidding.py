"""PI-FL: clients bid for the tiers with the best models for their data, and average tier models individually.

Khan et al., "PI-FL: Personalized and Incentivized Federated Learning", 2023, https://arxiv.org/abs/2304.07514,
algorithms 1 and 3, equations 3 and 4. The mathematics is in :mod:`lightning_fl.functional.pifl`, contributions are
``ShapleyRewards``, payments :mod:`lightning_fl.callbacks.rewards.tokens`.

Differs from the paper: an honest client without a tier above the threshold bids for the best one by default
(``HonestBidding``). Random clients are drawn from all clients and pay only if they bid, while equation 7 charges all:
otherwise a client without tokens could never earn again. This rewards waiting to be drawn (N_r turns among N clients
per round). In the first round there are no bids and no payments. Contributions are compared within a round and decay
(``contribution_decay``), as they shrink with the loss. Acc_kmax is the largest estimate on drawn samples, and so biased
upwards. Personal models use samples of ``personal_split``, which may differ from the training data. The first tiers are
random, as in all evaluations of the paper; equation 5, which forms them by F1 scores, is left out.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from lightning_fl.callbacks.callback import Drawings
from lightning_fl.callbacks.collaboration.client_clusters import check_at_most_clients
from lightning_fl.callbacks.personal.soft_averaging import PersonalMixtures
from lightning_fl.callbacks.rewards.bidding import BiddingPolicy, BidView, HonestBidding
from lightning_fl.callbacks.rewards.shapley_rewards import ShapleyRewards
from lightning_fl.callbacks.rewards.tier_round import TIER_COLUMNS, TierRound, tier_figures, tier_rows, tier_summary
from lightning_fl.callbacks.rewards.tokens import TOKEN_COLUMNS, Ledger, Tokens
from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.errors import ConfigurationError, TrainingError
from lightning_fl.core.seeding import shuffled
from lightning_fl.core.validation import Count, Fraction, Size, checked_fields, warn_beyond_end
from lightning_fl.data.module import Split
from lightning_fl.engine.probes.client_scores import ClientScores
from lightning_fl.engine.probes.on_hosts import check_samples
from lightning_fl.functional.pifl import schedule, standings
from lightning_fl.functional.tokens import UNITS_PER_TOKEN
from lightning_fl.runtime.surface import TrainerSurface


@checked_fields
class TierBidding(PersonalMixtures):
    """K tier models; in every round clients bid for tiers by the models' scores on their data.

    A tier is trained by the bidders with the highest preference and then the largest contribution (by
    ``ShapleyRewards`` among the callbacks; at random without it), and by some clients drawn from all. A client may
    train several tiers in a round, with the same batches. A tier without clients stays. Clients use the average of the
    tier models by their importance weights. Works with any strategy, ``PersonalLayers`` (not in tiers),
    ``ClientArrivals`` and failed clients. With ``optimizer_state="keep"`` a client has one optimiser for all tiers.

    Writes ``tiers.csv`` and, with ``tokens``, ``tokens.csv`` (``docs/reference/files.md``), all transactions in
    millionths of a token. Logs ``tokens/unaffordable``, ``tokens/pool/TIER`` and ``tokens/balance``.

    Args:
        num_tiers: K, at most the number of clients. 1 is FedAvg with bids.
        num_best: N_p, bidders that train a tier, by preference and contribution.
        num_random: N_r, additional clients of a tier drawn at random.
        threshold: T_h: an honest client bids for tiers with a larger importance weight, or for the best one.
        policy: bidding policy of the clients; default ``HonestBidding``.
        policies: client's number -> its own policy.
        tokens: balances, prices and payments, by the values of ``ShapleyRewards``; ``None`` for free bids. They matter
            only if clients cannot pay all their bids: a run in which all could warns. With an initial balance of
            ``num_tiers`` prices clients depend on their earnings from the second turn on.
        contribution_decay: factor of a client's standing in a tier for each round in which it did not train it.
        initial_rounds: rounds in which clients stay in randomly dealt tiers, without bids, until the models have
            learned something; N_p + N_r clients of each tier train in turn. New clients get a random tier.
        monitor: validation metric that scores a model: a share such as an accuracy, or a loss x as ``exp(-x)``.
            Default: the first one where more is better and that is never negative (as R2 may be), else the first loss.
        bid_split: split of the samples for bids.
        personal_split: split of the samples for personal models; clients without such samples use ``bid_split``.
        num_samples: samples of each client and use, redrawn every round; ``None`` for all.

    Attributes:
        rounds: record of each round; the last one decides the next round.
        first_tiers: tier -> clients that were dealt to it.
        ledger: all accounts and transactions; ``None`` without ``tokens``.

    Raises:
        ConfigurationError: a value is out of range; at the start of a run, there are more tiers than clients, a policy
            is for an unknown client, a client lacks ``bid_split`` samples, there is no ``validation_step``, or tokens
            lack ``ShapleyRewards`` of every round; later, a metric gives no score or a policy bids for an unknown tier.
        TrainingError: no client trains any tier.
    """

    method_name = "PI-FL"
    role = "collaboration"
    traits = ("soft_assignment",)

    num_tiers: Count
    num_best: Size = 5
    num_random: Size = 1
    threshold: Fraction = 0.5
    policy: BiddingPolicy | None = None
    policies: dict[int, BiddingPolicy] | None = None
    tokens: Tokens | None = None
    contribution_decay: Fraction = 0.9
    initial_rounds: Count = 1
    monitor: str | None = None
    bid_split: Literal["train", "val"] = "train"
    personal_split: Literal["train", "val"] = "val"
    num_samples: Count | None = 256

    def __post_init__(self) -> None:
        if not self.num_best + self.num_random:
            raise ConfigurationError("TierBidding.num_best=0 and num_random=0: one of them must be at least 1.")
        self.split = self.bid_split
        self.policies = self.policies or {}
        self.rounds: list[TierRound] = []
        self.first_tiers: dict[int, list[int]] = {}
        self.ledger = None if self.tokens is None else Ledger(self.tokens)
        self.personal_round = 0
        # Of the current round.
        self._bids: dict[int, list[int]] = {}
        self._unaffordable: dict[int, list[int]] = {}

    def setup(self, trainer: TrainerSurface, stage: str) -> None:
        """Check for payments that there are values of contributions, before data are read."""
        if stage != "fit" or self.tokens is None:
            return
        rewards = trainer.callback(ShapleyRewards)
        if rewards is None:
            raise ConfigurationError("TierBidding.tokens needs ShapleyRewards: add it to trainer.callbacks.")
        if (every := rewards.every_n_rounds) != 1:
            raise ConfigurationError(f"ShapleyRewards.every_n_rounds={every}: must be 1 for TierBidding.tokens.")

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        self.__post_init__()
        warn_beyond_end(self, trainer.max_rounds, initial_rounds=self.initial_rounds)
        count = trainer.num_clients
        check_at_most_clients(self, count, num_tiers=self.num_tiers)
        if self.policies and not set(self.policies) <= set(range(count)):
            raise ConfigurationError(f"TierBidding.policies of {sorted(self.policies)}: clients are 0..{count - 1}.")
        self._scores(trainer, self.bid_split)  # raises for a module without validation
        check_samples(trainer.loop, "TierBidding.bid_split", self.bid_split)
        trainer.federation.collaboration = self._in_training(trainer)

    def _in_training(self, trainer: TrainerSurface) -> Collaboration:
        """All clients alike: states of tiers depend neither on evaluations nor on who trained last."""
        beta = Collaboration.fedavg(trainer.federation.num_samples).aggregation
        uniform = torch.full((trainer.num_clients, self.num_tiers), 1 / self.num_tiers, dtype=torch.float64)
        return Collaboration(beta.expand(self.num_tiers, -1), uniform)

    def select_clients(self, trainer: TrainerSurface) -> Cohort:
        """Collect bids and select the clients of every tier; selected bidders pay."""
        self._evaluated, trainer.federation.collaboration = trainer.federation.collaboration, self._in_training(trainer)
        present = list(trainer.active_clients)
        tiers = range(self.num_tiers)
        if self.ledger is not None:
            self.ledger.open(trainer.federation.current_round + 1, trainer.present_clients)
        if trainer.federation.current_round < self.initial_rounds:
            self._place(trainer, present)
            self._bids, self._unaffordable, best, drawn = {}, {}, 0, self.num_best + self.num_random
            available = [[client for client in present if client in self.first_tiers[tier]] for tier in tiers]
        else:
            self._collect_bids(trainer, present)
            best, drawn, available = self.num_best, self.num_random, [present] * self.num_tiers
        bidders, cohorts = {}, {}
        for tier in tiers:
            bidders[tier] = {client: wanted.index(tier) + 1 for client, wanted in self._bids.items() if tier in wanted}
            known, draws = self._standings(trainer, tier), trainer.generator("cohort", tier)
            cohorts[tier] = schedule(bidders[tier], known, best, drawn, draws, available=available[tier])
        if present and not any(cohort.clients for cohort in cohorts.values()):
            number = trainer.federation.current_round + 1
            remedy = "lower TierBidding.threshold, give clients more tokens, or set TierBidding.num_random=1"
            raise TrainingError(f"no client bids for a tier in round {number}: {remedy}.")
        self._cohorts = {tier: cohort._asdict() for tier, cohort in cohorts.items()}
        for tier, cohort in cohorts.items():
            if self.ledger is not None:
                payers = set(bidders[tier]).intersection(cohort.clients)
                self.ledger.pay(trainer.federation.current_round + 1, tier, payers)
                trainer.log(f"tokens/pool/{tier}", len(payers) * self.ledger.price / UNITS_PER_TOKEN)
            trainer.log(f"tier/{tier}/clients", len(cohort.clients))
            trainer.log(f"tier/{tier}/bidders", len(bidders[tier]))
        beta = Collaboration.fedavg(trainer.federation.num_samples).aggregation[0].tolist()
        chosen = [(client, tier) for tier, cohort in cohorts.items() for client in cohort.clients]
        return Cohort(tuple(Participant(client, tier, beta[client]) for client, tier in chosen))

    def on_aggregate_end(self, trainer: TrainerSurface) -> None:
        """Score the new tier models, settle payments and set the clients' mixtures."""
        shares = trainer.round.shares
        importance, mixtures = self._importance(trainer, trainer.active_clients, self.bid_split)
        accuracies = [float("nan")] * self.num_tiers
        for tier, of_tier in shares.items():
            accuracies[tier] = float(importance[list(of_tier), tier].mean())
            trainer.log(f"tier/{tier}/accuracy", accuracies[tier])
        if self.ledger is not None:
            trainer.log("tokens/unaffordable", sum(map(len, self._unaffordable.values())))
            self._settle(trainer, self.ledger, accuracies)
        aggregation = self._evaluated.aggregation.clone()
        for tier, of_tier in shares.items():
            aggregation[tier] = 0.0
            aggregation[tier, list(of_tier)] = torch.tensor(list(of_tier.values()), dtype=torch.float64)
        trainer.federation.collaboration = Collaboration(aggregation, self._evaluated.personalisation)
        self.set_mixtures_where_evaluated(trainer, mixtures)
        self.rounds.append(
            TierRound(
                number=trainer.federation.current_round + 1,
                bids={client: tiers for client, tiers in self._bids.items() if tiers},
                cohorts=self._cohorts,
                shares=shares,
                importance=importance,
                accuracies=accuracies,
                personalisation=trainer.federation.collaboration.personalisation.clone(),
                balances={} if self.ledger is None else dict(self.ledger.balances),
                unaffordable={client: tiers for client, tiers in self._unaffordable.items() if tiers},
            )
        )

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        """Set personal models after an early end; write ``tiers.csv``, ``tokens.csv`` and the summary."""
        if not self.rounds:
            return
        if trainer.federation.current_round != self.personal_round and not trainer.federation.interrupted_by:
            self.set_mixtures(trainer, self.weigh(trainer, self.bid_split), trainer.federation.current_round)
        self.rounds[-1].personalisation = trainer.federation.collaboration.personalisation.clone()
        bidding = [one for one in self.rounds if one.number > self.initial_rounds]
        if self.tokens is not None and bidding and not any(one.unaffordable for one in bidding):
            balance, price = self.tokens.initial_balance, self.tokens.price
            what = f"Tokens.initial_balance={balance:g} at a price of {price:g} is too large"
            remedy = f"Set it to {min(self.num_tiers * price, balance / 2):g}, or tokens to null."
            rank_zero_warn(f"TierBidding.tokens prevented no bid in {len(bidding)} rounds: {what}. {remedy}")
        names = trainer.client_names
        trainer.write_table("tiers.csv", TIER_COLUMNS, tier_rows(self.rounds, names))
        trainer.run_log.summary["tiers"] = tier_summary(self.rounds, names)
        if self.ledger is not None:
            trainer.write_table("tokens.csv", TOKEN_COLUMNS, self.ledger.rows(names))
            trainer.run_log.summary["tokens"] = {
                "bids": sum(len(tiers) for one in self.rounds for tiers in one.bids.values()),
                "unaffordable_bids": sum(len(tiers) for one in self.rounds for tiers in one.unaffordable.values()),
                **self.ledger.summary(names),
            }

    def figures(self, trainer: TrainerSurface, stage: str) -> Drawings:
        return tier_figures(trainer, self.rounds, self.ledger) if stage == "fit" and self.rounds else ()

    def state_dict(self) -> dict[str, Any]:
        return {
            "rounds": [dict(vars(one)) for one in self.rounds],
            "first_tiers": self.first_tiers,
            "personal_round": self.personal_round,
            "transactions": [] if self.ledger is None else [tuple(one) for one in self.ledger.transactions],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__post_init__()
        self.rounds = [TierRound(**one) for one in state["rounds"]]
        self.first_tiers = state["first_tiers"]
        self.personal_round = state["personal_round"]
        if self.ledger is not None:
            self.ledger.replay(state["transactions"])

    def _place(self, trainer: TrainerSurface, present: list[int]) -> None:
        if not self.first_tiers:
            order = shuffled(present, trainer.generator("first tiers"))
            self.first_tiers = {tier: sorted(order[tier :: self.num_tiers]) for tier in range(self.num_tiers)}
        for client in set(present).difference(*self.first_tiers.values()):
            tier = shuffled(range(self.num_tiers), trainer.generator("first tier", client))[0]
            self.first_tiers[tier] = sorted([*self.first_tiers[tier], client])

    def _standings(self, trainer: TrainerSurface, tier: int) -> dict[int, float]:
        rewards = trainer.callback(ShapleyRewards)
        if rewards is None:
            return {}
        valued = zip(rewards.rounds, rewards.by_model, strict=True)
        history = [(done, models[tier]) for done, models in valued if models.get(tier)]
        return standings(history, trainer.federation.current_round + 1, self.contribution_decay)

    def _collect_bids(self, trainer: TrainerSurface, present: list[int]) -> None:
        """Collect the bids of the clients' policies, and those that they cannot pay."""
        importance = self.rounds[-1].importance
        if newcomers := [client for client in present if importance[client].isnan().any()]:
            importance = importance.clone()
            importance[newcomers] = self._importance(trainer, newcomers, self.bid_split)[0][newcomers]
        earned: Mapping[tuple[int, int], int] = Counter() if self.ledger is None else self.ledger.earned

        def bid(client: int) -> tuple[list[int], int]:
            policy = (self.policies or {}).get(client) or self.policy or HonestBidding()
            view = BidView(
                client=client,
                round=trainer.federation.current_round + 1,
                importance=tuple(importance[client].tolist()),
                past_rewards=tuple(earned[client, tier] for tier in range(self.num_tiers)),
                threshold=self.threshold,
                balance=None if self.ledger is None else self.ledger.balances[client],
                price=0 if self.ledger is None else self.ledger.price,
            )
            tiers = policy.bid(view, trainer.generator("bid", client))
            if len(set(tiers)) != len(tiers) or not set(tiers) <= set(range(self.num_tiers)):
                what = f"{type(policy).__name__} bids for the tiers {list(tiers)}"
                raise ConfigurationError(f"{what}: return distinct ones of 0..{self.num_tiers - 1}.")
            return [int(tier) for tier in tiers], view.num_affordable

        wanted = trainer.on_hosts(present, bid, "bidding failed")
        self._bids = {client: tiers[:most] for client, (tiers, most) in wanted.items()}
        self._unaffordable = {client: tiers[most:] for client, (tiers, most) in wanted.items()}

    def _scores(self, trainer: TrainerSurface, split: Split) -> ClientScores:
        return ClientScores(trainer.loop, "TierBidding", split, self.num_samples, self.monitor)

    def _importance(self, trainer: TrainerSurface, clients: Sequence[int], split: Split) -> tuple[Tensor, Tensor]:
        """υ and rows of P of some clients, [N, K]; NaN for others and for clients without such samples."""
        scores = self._scores(trainer, split)
        trainer.federation.communication.receive(clients, trainer.federation.models)

        def score(client: int) -> Tensor | None:
            has_samples = trainer.loop.factory.batches(client, split) is not None
            return torch.stack(scores.weigh(client, trainer.federation.models)) if has_samples else None

        found = trainer.on_hosts(clients, score, "TierBidding cannot score the tiers")
        both = torch.full((2, trainer.num_clients, self.num_tiers), float("nan"), dtype=torch.float64)
        for client, rows in found.items():
            if rows is not None:
                both[:, client] = rows
        return both[0], both[1]

    def weigh(self, trainer: TrainerSurface, split: Split) -> Tensor:
        return self._importance(trainer, trainer.active_clients, split)[1]

    def _settle(self, trainer: TrainerSurface, ledger: Ledger, accuracies: Sequence[float]) -> None:
        rewards = trainer.callback(ShapleyRewards)
        assert rewards is not None
        for tier, accuracy in enumerate(accuracies):
            trained_before = [one for one in self.rounds if tier in one.shares]
            ledger.settle(
                trainer.federation.current_round + 1,
                tier,
                contributions=rewards.by_model[-1].get(tier, {}) if tier in trainer.round.shares else {},
                participations=Counter(client for one in trained_before for client in one.shares[tier]),
                accuracy=accuracy,
                best_accuracy=max((one.accuracies[tier] for one in trained_before), default=0.0),
            )
        balances = {client: units / UNITS_PER_TOKEN for client, units in ledger.balances.items()}
        trainer.log_clients("tokens/balance", balances)
