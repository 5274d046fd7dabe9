"""Label shift with class shares drawn from a Dirichlet distribution."""

from torch import Tensor

from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import Count, Size, checked_fields
from lightning_fl.data.partition.labels import LabelPartitioner, share_counts
from lightning_fl.data.partition.partitioner import Concentration, draw_until_enough
from lightning_fl.functional.dirichlet import sample_dirichlet


@checked_fields
class Dirichlet(LabelPartitioner):
    """Label shift with class shares drawn from a Dirichlet distribution.

    Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for federated visual classification",
    2019, https://arxiv.org/abs/1909.06335, in the form with proportions per class (Yurochkin et al., ICML 2019): the
    clients' shares of every class are one draw from Dir(α, ..., α). All are redrawn until every client has
    ``min_samples``.

    Args:
        num_clients: number of clients.
        alpha: concentration α: 0.1 gives clients with few classes, 100 nearly equal ones.
        num_bins: bins between quantiles for real targets.
        target: the column of several targets [n, T] to use.
        min_samples: least number of (training) samples of a client.
    """

    num_clients: Count
    alpha: Concentration
    num_bins: Count = 10
    target: Size | None = None
    min_samples: Count = 1

    def holdings(self, sizes: Tensor, seed: int) -> Tensor:
        """Class shares, float64, shape [C, N]; each row sums to 1."""
        rng = generator(seed, "partition", "dirichlet")

        def draw() -> tuple[Tensor, int]:
            shares = sample_dirichlet(self.alpha, self.num_clients, rng, (len(sizes),))
            return shares, int(share_counts(sizes, shares).sum(0).min())

        return draw_until_enough(draw, int(sizes.sum()), self.num_clients, self.alpha, self.min_samples)
