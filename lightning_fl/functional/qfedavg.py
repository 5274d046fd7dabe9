"""The mathematics of q-FedAvg.

Li, Sanjabi, Beirami, Smith: Fair Resource Allocation in Federated Learning, ICLR 2020
(https://arxiv.org/abs/1905.10497), algorithm 2.
"""

#: Added to a loss, so that one of zero has a power.
_TINY = 1e-10


def loss_weight(loss: float, largest: float, q: float) -> float:
    """``(F_i / max_j F_j)^q`` of ``loss`` F_i: a client's weight over that of the worst, so that none is too large."""
    return float(((loss + _TINY) / (largest + _TINY)) ** q)


def fair_terms(loss: float, largest: float, q: float, lipschitz: float, squared_length: float) -> tuple[float, float]:
    """A client's terms of the step ``s = Σ L F_i^q / Σ h_i``, both over ``max_j F_j^q``, with L ``lipschitz``.

    Returns ``L F_i^q`` and ``h_i = q F_i^(q-1) ‖L (x - y_i)‖² + L F_i^q``; ``squared_length`` is ``‖x - y_i‖²``.
    """
    weight = loss_weight(loss, largest, q)
    slope = lipschitz * weight
    return slope, q * weight / (loss + _TINY) * lipschitz**2 * squared_length + slope
