"""Bidding policies: how clients choose the tiers that they bid for.

Khan et al., "PI-FL: Personalized and Incentivized Federated Learning", 2023, https://arxiv.org/abs/2304.07514,
algorithm 1; random bids are those of its section 4.3.4. ``docs/tiers.md`` shows how to write another policy.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from lightning_fl.core.seeding import shuffled
from lightning_fl.core.validation import Count, checked_fields
from lightning_fl.functional.pifl import choose_bids


@dataclass(frozen=True)
class BidView:
    """A client's information for its bids; amounts are in units of tokens, 0 or ``None`` without tokens."""

    client: int
    round: int  #: of the bids, counted from 1
    importance: tuple[float, ...]  #: υ of each tier, its score in [0, 1] on the client's own samples, length K
    past_rewards: tuple[int, ...]  #: rewards and reimbursements minus payments of each tier so far, length K
    threshold: float  #: T_h
    balance: int | None
    price: int  #: per bid

    @property
    def num_tiers(self) -> int:
        return len(self.importance)

    @property
    def num_affordable(self) -> int:
        if self.balance is None or not self.price:
            return self.num_tiers
        return min(self.num_tiers, self.balance // self.price)


class BiddingPolicy(ABC):
    """Base of bidding policies; a subclass defines :meth:`bid`."""

    @abstractmethod
    def bid(self, view: BidView, generator: torch.Generator) -> list[int]:
        """Choose distinct tiers 0..K-1 in order of preference, on the rank of the client; empty for no bid.

        The last bids that the client cannot pay are dropped. Draw only from ``generator``, of this client and round.
        """


@checked_fields
class HonestBidding(BiddingPolicy):
    """Bids for the tiers above the threshold (PI-FL's algorithm 1), in order of their past rewards.

    Section 3.1 of the paper mentions rewards, but gives no order.

    Args:
        at_least_one: bid for the best tier if none is above the threshold. In the paper such a client does not bid: in
            the first rounds, when models are poor, these can be all clients, and later a kind of clients that no tier
            serves would never get one.
    """

    at_least_one: bool = True

    def bid(self, view: BidView, generator: torch.Generator) -> list[int]:
        bids = choose_bids(view.importance, view.past_rewards, view.threshold)
        if bids or not self.at_least_one:
            return bids
        return [max(range(view.num_tiers), key=lambda tier: view.importance[tier])]


@checked_fields
class RandomBidding(BiddingPolicy):
    """Random tiers: bids without incentives.

    Args:
        num_bids: most tiers per round; ``None`` for all.
    """

    num_bids: Count | None = 1

    def bid(self, view: BidView, generator: torch.Generator) -> list[int]:
        return shuffled(range(view.num_tiers), generator)[: self.num_bids]
