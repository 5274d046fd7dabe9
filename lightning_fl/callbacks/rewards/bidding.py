"""How clients choose the tiers that they bid for.

Khan et al., "PI-FL: Personalized and Incentivized Federated Learning", 2023, https://arxiv.org/abs/2304.07514,
algorithm 1; random bids are those of its section 4.3.4. ``docs/tiers.md`` shows how to write another policy.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from lightning_fl.core.seeding import shuffled
from lightning_fl.core.validation import check_counts
from lightning_fl.functional.pifl import choose_bids

__all__ = ["BidView", "BiddingPolicy", "HonestBidding", "RandomBidding"]


@dataclass(frozen=True)
class BidView:
    """What a client knows when it bids.

    Args:
        client: its number.
        round: the round that it bids for, counted from 1.
        importance: υ of each tier, its score in [0, 1] on the client's own samples, length K.
        past_rewards: what each tier brought it so far, rewards and reimbursements less payments, in units of tokens,
            length K; zeros where nothing is paid.
        threshold: T_h.
        balance: units of tokens that it has; ``None`` where nothing is paid.
        price: units of tokens that a bid costs; 0 where nothing is paid.
    """

    client: int
    round: int
    importance: tuple[float, ...]
    past_rewards: tuple[int, ...]
    threshold: float
    balance: int | None
    price: int

    @property
    def num_tiers(self) -> int:
        """K."""
        return len(self.importance)

    @property
    def num_affordable(self) -> int:
        """For how many tiers it can bid."""
        if self.balance is None or not self.price:
            return self.num_tiers
        return min(self.num_tiers, self.balance // self.price)


class BiddingPolicy(ABC):
    """A client's way to bid. A policy of one's own needs :meth:`bid` only."""

    @abstractmethod
    def bid(self, view: BidView, generator: torch.Generator) -> list[int]:
        """The tiers that a client bids for, where its data are.

        Args:
            view: what the client knows.
            generator: of this client and round, on the CPU; all that is drawn comes from it.

        Returns:
            Distinct tiers 0..K-1, the one it prefers first; empty to keep silent. Those at the end that the client
            cannot pay for are left out.
        """


class HonestBidding(BiddingPolicy):
    """PI-FL's algorithm 1: tiers that are worth it, where it was rewarded best before first.

    Args:
        at_least_one: a client that no tier is worth its threshold bids for the one that serves it best. No part of the
            paper's algorithm, by which it keeps silent: in the first rounds, when the models have learned little, that
            can be everybody, and tiers are left to the clients that are drawn; later, a kind of clients that no tier
            serves would never get one.
    """

    def __init__(self, *, at_least_one: bool = True) -> None:
        self.at_least_one = at_least_one

    def bid(self, view: BidView, generator: torch.Generator) -> list[int]:
        """The tiers whose υ exceeds the threshold; else the one with the largest, of equals the first."""
        bids = choose_bids(view.importance, view.past_rewards, view.threshold)
        if bids or not self.at_least_one:
            return bids
        return [max(range(view.num_tiers), key=lambda tier: view.importance[tier])]


class RandomBidding(BiddingPolicy):
    """Tiers in a random order, up to a number: bids without any incentive.

    Args:
        num_bids: the most tiers in a round; ``None`` for all.
    """

    def __init__(self, *, num_bids: int | None = 1) -> None:
        check_counts(self, num_bids=num_bids, mend=", or null")
        self.num_bids = num_bids

    def bid(self, view: BidView, generator: torch.Generator) -> list[int]:
        """The first tiers of a random order."""
        return shuffled(range(view.num_tiers), generator)[: self.num_bids]
