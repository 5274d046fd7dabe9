"""Random parts of unequal size, in given ratios or in ratios drawn from a Dirichlet distribution."""

from dataclasses import dataclass
from typing import Any

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import Count, Positive
from lightning_fl.data.partition.by_size import SizePartitioner
from lightning_fl.data.partition.partitioner import Concentration, draw_until_enough
from lightning_fl.data.sizes import apportion
from lightning_fl.functional.dirichlet import sample_dirichlet


@dataclass(kw_only=True, eq=False)
class Quantity(SizePartitioner):
    """Random parts of unequal size: in given ratios, or in ratios drawn from Dir(alpha, ..., alpha).

    He et al., "FedGraphNN", arXiv:2104.07145 (2021): latent Dirichlet allocation over the sizes, redrawn until each
    client has ``min_samples``.

    Args:
        ratios: one number per client, such as ``[7, 2, 1]``; instead of ``num_clients`` and ``alpha``.
        stratified: every client gets the classes in proportion, as for :class:`IID`.
        num_clients: number of clients with drawn ratios; with ``alpha``.
        alpha: concentration of the distribution: small values give one client nearly everything.
        min_samples: least number of (training) samples of a client with drawn ratios; ``None`` for 10.

    Example:
        >>> Quantity(num_clients=4, alpha=0.5).num_clients
        4
    """

    ratios: list[Positive] | None = None
    stratified: bool = False
    num_clients: Count | None = None
    alpha: Concentration | None = None
    min_samples: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        drawn = (self.num_clients, self.alpha, self.min_samples)
        is_drawn = self.ratios is None and None not in drawn[:2]
        if not is_drawn and not (self.ratios and drawn == (None, None, None)):
            raise ConfigurationError(
                f"Quantity.ratios={self.ratios} with num_clients={drawn[0]}, alpha={drawn[1]}, min_samples={drawn[2]}:"
                " give ratios alone, or num_clients and alpha to draw them."
            )
        self.num_clients = self.num_clients or len(self.ratios or [])

    def client_ratios(self, num_samples: int, seed: int) -> list[float]:
        num_clients, alpha = self.num_clients or 0, self.alpha
        if alpha is None:
            return self.ratios or []
        rng = generator(seed, "partition", "dirichlet sizes")

        def draw() -> tuple[list[float], int]:
            ratios: list[float] = sample_dirichlet(alpha, num_clients, rng).tolist()
            return ratios, min(apportion(num_samples, ratios))

        return draw_until_enough(draw, num_samples, num_clients, alpha, self.min_samples or 10)

    def describe(self) -> dict[str, Any]:
        """Name and options, for the run's record; without ``alpha`` and ``min_samples`` where they are not set."""
        unset = {name for name in ("alpha", "min_samples") if getattr(self, name) is None}
        return {name: value for name, value in super().describe().items() if name not in unset}
