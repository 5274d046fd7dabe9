"""One round of PI-FL's payments in one tier: bids in, reimbursements and rewards out.

Khan et al., "PI-FL: Personalized and Incentivized Federated Learning", 2023, https://arxiv.org/abs/2304.07514,
section 3.2, equations 6 to 14.

=========================  =======================================================  ==================
paper                      here                                                     unit
=========================  =======================================================  ==================
τ_p                        ``price`` of a bid                                       units of tokens
ψ_ki, Ω_ki                 ``contributions``, ``participations`` by client          loss, rounds
Acc_kr, Acc_kmax           ``accuracy``, ``best_accuracy``                          share in [0, 1]
η, γ                       ``eta``, ``gamma``                                       shares in [0, 1]
=========================  =======================================================  ==================

:func:`collect_bids` comes before the training of a tier, :func:`settle_round` after it. What becomes of the pool then:

- The providers are the clients that trained and whose updates arrived. A payer that failed is no provider, but is
  reimbursed like the others: it can use the tier's model like the others.
- No provider is left: every payer gets back what it paid.
- A payer left before the settlement: it is not reimbursed. If all is paid back, its part is retired as its balance was.
- Every payer left: nothing is reimbursed, the pool rewards the providers.

Differs from the paper: in section 3.2's text the willing clients pay, in equation 7 the selected ones; the payers are
what the caller names, the selected bidders in PI-FL. Equation 14 rewards out of what the reimbursement has left, as the
text says, though its symbol is that of the whole pool. The pool is empty after every round.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lightning_fl.errors import ConfigurationError
from lightning_fl.functional.pifl import rank_shares, reimbursement_share
from lightning_fl.functional.tokens import Ledger

__all__ = ["Settlement", "collect_bids", "settle_round"]


class Settlement(NamedTuple):
    """What a tier's pool was paid out as; units of tokens by client."""

    share: float
    """θ, the share that was to be reimbursed; 1 where all was paid back."""
    reimbursed: dict[int, int]
    rewarded: dict[int, int]
    refunded: dict[int, int]


def collect_bids(ledger: Ledger, round: int, tier: int, payers: Sequence[int], price: int) -> None:
    """Before the training of a tier: every payer pays the price of its bid, or nobody does (equations 6 and 7).

    Raises:
        ConfigurationError: if a payer is named twice, has no account or has less than the price.
    """
    if len(set(payers)) != len(payers):
        raise ConfigurationError(f"payers={list(payers)}: name each client once.")
    balances = ledger.balances()
    short = {client: balances.get(client, 0) for client in payers if balances.get(client, -1) < price}
    if short:
        raise ConfigurationError(
            f"tier {tier}: the price is {price} units, but these clients have {short}: let clients bid for what they"
            " can pay only (choose_bids)."
        )
    for client in sorted(payers):
        ledger.pay(client, price, round, tier)


def settle_round(
    ledger: Ledger,
    round: int,
    tier: int,
    contributions: Mapping[int, float],
    participations: Mapping[int, int],
    accuracy: float,
    best_accuracy: float,
    eta: float,
    gamma: float,
) -> Settlement:
    """After the training of a tier: its pool is reimbursed and rewarded (equations 8 to 14), and empty then.

    Args:
        ledger: changed in place.
        round: the round.
        tier: the tier.
        contributions: ψ of each provider, a client whose update arrived; those without an account get nothing.
        participations: Ω, in how many rounds a client has trained the tier.
        accuracy: mean accuracy of the new tier model on its clients' data; not read where there is no provider.
        best_accuracy: the largest of the rounds before, 0 in the first.
        eta: η in [0, 1], the most that is reimbursed.
        gamma: γ in (0, 1], the improvement from which on nothing is reimbursed.

    Raises:
        ConfigurationError: if a number is out of range or a contribution is NaN; no token has moved then.
    """
    accounts = ledger.balances()
    providers = {client: psi for client, psi in contributions.items() if client in accounts}
    if not providers:
        return Settlement(1.0, {}, {}, ledger.refund(tier, round))
    share = reimbursement_share(accuracy, best_accuracy, eta, gamma)
    ranked = rank_shares(providers, participations)
    return Settlement(share, ledger.reimburse(tier, share, round), ledger.reward(tier, ranked, round), {})
