"""FedCollab's choice of coalitions: an objective of distances and data counts, and a solver for it.

Bao, Wang, Wu, He, "Optimizing the Collaboration Structure in Cross-Silo Federated Learning", ICML 2023,
https://arxiv.org/abs/2306.06508, equation 10 and algorithm 2.

``L(p) = (1/N) Σ_i (C / √(samples of i's coalition) + Σ_j α_ij D_ij)``, with ``α_ij = m_j / (samples of i's coalition)``
for j in it, else 0: few samples cost C / √m, different clients in the coalition cost their distance. A coalition c of n
clients and M samples adds ``n C / √M + W / M`` to N L, with ``W = Σ_{i<j in c} (m_i + m_j) D_ij``, so that moving a
client or merging two coalitions changes L by a few sums that are kept up to date.

Differs from the paper: L is the mean over clients, as in the authors' code, not the sum; the second line of equation 10
squares the norm, which its first line and the theory do not: no square here. The solver makes algorithm 2's moves of
single clients and also merges whole coalitions; it starts from many assignments, not only from all alone, and from
perturbations of the best one found.
"""

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.seeding import derive_seed, generator
from lightning_fl.core.validation import Count, NonNegative, checked
from lightning_fl.functional.gram import in_order, sample_counts
from lightning_fl.functional.shapes import Integers, check_square

_Array = npt.NDArray[np.float64]
_Labels = npt.NDArray[np.int64]
_Sum = TypeVar("_Sum", float, _Array)

# Changes of N L below this, relative to the sums behind it, are rounding; no step is taken for them.
_ROUNDING = 1e-12
# Perturbations of the best assignment after each restart: a minimum, plus one for every so many clients. Large cases,
# and distances of the size of their noise, have many local optima: with 4 perturbations seeds disagree about cases like
# the paper's concept shift.
_MIN_PERTURBATIONS, _CLIENTS_PER_PERTURBATION = 20, 20


def coalition_objective(assignment: Integers, distances: Tensor, num_samples: Integers, capacity: float) -> float:
    """FedCollab's L of an assignment, the mean over clients, in the units of the distances.

    Args:
        assignment: label of each client's coalition, any integers, length N.
        distances: D, symmetric, zero on the diagonal, shape [N, N]. Estimates may be below 0.
        num_samples: m, positive, length N.
        capacity: C >= 0.

    Example:
        >>> apart = torch.tensor([[0.0, 0.5], [0.5, 0.0]])
        >>> coalition_objective([0, 1], apart, num_samples=[100, 100], capacity=10)  # 10 / sqrt(100)
        1.0
        >>> coalition_objective([0, 0], apart, [200, 200], capacity=10)  # 10 / sqrt(400) + 0.5 / 2
        0.75
    """
    pairs, samples = _check(distances, num_samples, capacity)
    return _Search(_labels(assignment, len(samples)), pairs, samples, capacity).total / len(samples)


@checked
def solve_coalitions(
    distances: Tensor, num_samples: Integers, capacity: float, num_restarts: Count = 20, seed: int = 0
) -> list[int]:
    """Search for the assignment with the least L; labels 0..K-1 in order of first appearance.

    Restarts have different starts (all alone; all together; merged greedily from all alone; then random with a random
    number of coalitions) and take steps that lower L until none is left: clients in random order move to the best
    coalition, possibly an empty one; then whole coalitions merge. After each restart the best assignment is perturbed
    several times (one to three coalitions redrawn, or a few clients displaced) and improved in the same way.

    Doubling every count is dividing C by √2. The optimum for a smaller C has no larger distance term and no smaller
    Σ_i 1 / √(samples of i's coalition), so it is never coarser. It need not be finer: of three clients with 10, 300 and
    1,000 samples the first may change sides. The paper takes C = 10 for Fashion-MNIST and CIFAR-10, 8 for CIFAR-100.

    Example:
        >>> types = torch.tensor([0, 0, 1, 1])
        >>> solve_coalitions((types[:, None] != types).double(), [500, 500, 500, 500], capacity=10)
        [0, 0, 1, 1]
    """
    pairs, samples = _check(distances, num_samples, capacity)
    best = np.arange(len(samples))
    least = math.inf
    num_perturbations = _MIN_PERTURBATIONS + len(samples) // _CLIENTS_PER_PERTURBATION
    for restart in range(num_restarts):
        random = np.random.default_rng(derive_seed(seed, "coalitions", restart))
        for perturbation in range(1 + num_perturbations):
            start = _perturb(best, random) if perturbation else _start(restart, len(samples), random)
            search = _Search(start, pairs, samples, capacity)
            if restart == 2 and not perturbation:
                search.merge()
            search.descend(random)
            if least == math.inf or search.total < least - search.rounding:
                best, least = search.labels, search.total
    return in_order(best.tolist())


def join_coalitions(
    assignment: Integers, distances: Tensor, num_samples: Integers, capacity: float, newcomers: Sequence[int]
) -> list[int]:
    """Place new clients, in ascending order, where L is least; the others keep their labels.

    A newcomer gets the label of the coalition it joins (ties: the smallest), or the next free one if best alone.

    Args:
        assignment: label >= 0 of each client's coalition, length N; entries of newcomers are not read.
        distances: D of all clients, newcomers included, shape [N, N]; only the newcomers' rows need be new.
    """
    pairs, samples = _check(distances, num_samples, capacity)
    labels = _labels(assignment, len(samples))
    if len(set(newcomers)) < len(newcomers) or not all(0 <= client < len(samples) for client in newcomers):
        raise ConfigurationError(f"newcomers={list(newcomers)}: give distinct clients from 0 to {len(samples) - 1}.")
    present = np.ones(len(samples), dtype=bool)
    present[list(newcomers)] = False
    if (labels[present] < 0).any():
        raise ConfigurationError(f"assignment={labels.tolist()}: only newcomers may have labels below 0.")
    for newcomer in sorted(newcomers):
        used = np.unique(labels[present])
        chosen = int(used.max(initial=-1)) + 1
        least = capacity / math.sqrt(samples[newcomer])
        for label in used.tolist():
            members = np.flatnonzero(present & (labels == label))
            size, mass, within = len(members), samples[members].sum(), pairs[np.ix_(members, members)].sum() / 2
            before = _cost(float(size), mass, within, capacity)
            links = pairs[newcomer, members].sum()
            after = _cost(float(size + 1), mass + samples[newcomer], within + links, capacity)
            if after - before < least:
                chosen, least = label, after - before
        labels[newcomer] = chosen
        present[newcomer] = True
    return labels.tolist()


def same_coalitions_share(
    assignment: Sequence[int],
    distances: Tensor,
    standard_errors: Tensor,
    num_samples: Integers,
    capacity: float,
    *,
    num_draws: int = 40,
    num_restarts: int = 5,
    seed: int = 0,
) -> float:
    """The share of draws of all distances in which the best coalitions are the same: a parametric bootstrap.

    A draw adds to every distance an independent normal error of its standard error [N, N] (0 for known ones). The
    estimates already have an error, so the share is rather low.
    """
    own = in_order(list(assignment))
    same = 0
    for draw in range(num_draws):
        noise = torch.randn(distances.shape, generator=generator(seed, draw), dtype=torch.float64)
        errors = (noise * standard_errors).triu(1)
        drawn, own_seed = distances + errors + errors.T, derive_seed(seed, draw, "search")
        same += solve_coalitions(drawn, num_samples, capacity, num_restarts, own_seed) == own
    return same / num_draws


def _cost(sizes: _Sum, masses: _Sum, within: _Sum, capacity: float) -> _Sum:
    """Terms of non-empty coalitions in N L: ``n C / √M + W / M``."""
    return sizes * capacity / np.sqrt(masses) + within / masses


class _Search:
    """An assignment that is improved in place. There are N slots for coalitions; unused ones are empty.

    Per slot, shape [N]: ``sizes`` n, ``masses`` M, ``within`` W, ``costs``. ``links[c, i]`` is the sum over the members
    j of c of V_ij, shape [N, N]; V_ij = (m_i + m_j) D_ij is ``pairs``.
    """

    def __init__(self, labels: _Labels, pairs: _Array, samples: _Array, capacity: float) -> None:
        self.labels: _Labels = np.unique(labels, return_inverse=True)[1]
        self.pairs, self.samples, self.capacity = pairs, samples, capacity
        self._add_up()

    @property
    def total(self) -> float:
        """N L."""
        return float(self.costs.sum())

    @property
    def rounding(self) -> float:
        """The least change of N L above rounding. N L itself may be 0 if distances are below 0."""
        used = self.sizes > 0
        parts = self.costs[used] - self.within[used] / self.masses[used], self.within[used] / self.masses[used]
        return _ROUNDING * float(sum(np.abs(part).sum() for part in parts))

    def descend(self, random: np.random.Generator) -> None:
        """Step until neither single clients nor merges lower L."""
        improving = True
        while improving:
            goal = self.total - self.rounding
            self.move_clients(random.permutation(len(self.samples)))
            if not self.total < goal:
                self.merge()
            improving = self.total < goal

    def move_clients(self, order: _Labels) -> None:
        """Move each client in turn to where L is least; of equal places it stays in its own."""
        moved = False
        slack = self.rounding
        for client in order.tolist():
            own, mass, links = int(self.labels[client]), self.samples[client], self.links[:, client]
            change = _cost(self.sizes + 1, self.masses + mass, self.within + links, self.capacity) - self.costs
            size, left = self.sizes[own] - 1, self.masses[own] - mass
            without = _cost(size, left, self.within[own] - links[own], self.capacity) if size else 0.0
            change[own] = self.costs[own] - without - slack
            if (chosen := int(change.argmin())) != own:
                self._move(client, own, chosen)
                moved = True
        if moved:
            self._add_up()  # removes rounding of the differences

    def merge(self) -> None:
        """Merge the two coalitions whose union lowers L most, until none does."""
        while True:
            used = np.flatnonzero(self.sizes)
            member = (self.labels == used[:, None]).astype(np.float64)
            between = self.links[used] @ member.T
            sizes, masses, within, costs = (x[used] for x in (self.sizes, self.masses, self.within, self.costs))
            union = np.add.outer(within, within) + between
            change = _cost(np.add.outer(sizes, sizes), np.add.outer(masses, masses), union, self.capacity)
            change -= np.add.outer(costs, costs)
            np.fill_diagonal(change, np.inf)
            first, second = divmod(int(change.argmin()), len(used))
            if not change[first, second] < -self.rounding:
                return
            into, source = used[first], used[second]
            self.within[into] += self.within[source] + between[first, second]
            for sums in (self.sizes, self.masses, self.links):
                sums[into] += sums[source]
            self.costs[into] = _cost(self.sizes[into], self.masses[into], self.within[into], self.capacity)
            self.labels[self.labels == source] = into
            self._clear(source)

    def _add_up(self) -> None:
        member = np.zeros_like(self.pairs)
        member[self.labels, np.arange(len(self.labels))] = 1
        self.sizes, self.masses, self.links = member.sum(1), member @ self.samples, member @ self.pairs
        self.within = (self.links * member).sum(1) / 2
        used = self.sizes > 0
        self.costs = np.zeros(len(self.labels))
        self.costs[used] = _cost(self.sizes[used], self.masses[used], self.within[used], self.capacity)

    def _move(self, client: int, source: int, target: int) -> None:
        self.within[source] -= self.links[source, client]
        self.within[target] += self.links[target, client]
        for slot, sign in ((source, -1), (target, 1)):
            self.sizes[slot] += sign
            self.masses[slot] += sign * self.samples[client]
            self.links[slot] += sign * self.pairs[client]
            if self.sizes[slot]:
                self.costs[slot] = _cost(self.sizes[slot], self.masses[slot], self.within[slot], self.capacity)
            else:
                self._clear(slot)
        self.labels[client] = target

    def _clear(self, slot: int) -> None:
        self.sizes[slot] = self.masses[slot] = self.within[slot] = self.costs[slot] = 0
        self.links[slot] = 0


def _start(restart: int, num_clients: int, random: np.random.Generator) -> _Labels:
    if restart in (0, 2):
        return np.arange(num_clients)
    if restart == 1:
        return np.zeros(num_clients, dtype=np.int64)
    count = round(math.exp(random.uniform(0, math.log(num_clients))))  # few coalitions as likely as many
    return random.integers(count, size=num_clients)


def _perturb(labels: _Labels, random: np.random.Generator) -> _Labels:
    """Redistribute one to three coalitions among themselves and a new one, or two to an eighth of all clients."""
    perturbed = labels.copy()
    used = np.unique(labels)
    if random.random() < 0.5:
        mixed = random.choice(used, min(len(used), int(random.integers(1, 4))), replace=False)
        moving = np.flatnonzero(np.isin(labels, mixed))
        targets = np.append(mixed, used.max() + 1)
    else:
        count = min(len(labels), int(random.integers(2, max(3, len(labels) // 8) + 1)))
        moving = random.choice(len(labels), count, replace=False)
        targets = used
    perturbed[moving] = random.choice(targets, len(moving))
    return perturbed


def _labels(assignment: Integers, num_clients: int) -> _Labels:
    labels = torch.as_tensor(assignment, device="cpu")
    if labels.shape != (num_clients,) or labels.is_floating_point():
        raise ConfigurationError(f"assignment is {labels.dtype} {list(labels.shape)}: give integers [{num_clients}].")
    return np.array(labels, dtype=np.int64)


@checked
def _check(distances: Tensor, num_samples: Integers, capacity: NonNegative) -> tuple[_Array, _Array]:
    """V_ij = (m_i + m_j) D_ij, shape [N, N], and m, shape [N]."""
    check_square("distances", distances)
    matrix = np.array(distances.detach().cpu().double())
    if not np.isfinite(matrix).all():
        raise ConfigurationError("distances: every entry must be a finite number.")
    tolerance = 1e-6 * np.abs(matrix).max()
    if np.abs(matrix - matrix.T).max() > tolerance or np.abs(matrix.diagonal()).max() > tolerance:
        raise ConfigurationError("distances: must be symmetric with zeros on the diagonal.")
    samples = sample_counts(num_samples, len(matrix))
    matrix = (matrix + matrix.T) / 2
    np.fill_diagonal(matrix, 0)
    return np.add.outer(samples, samples) * matrix, samples
