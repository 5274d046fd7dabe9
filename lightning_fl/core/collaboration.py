"""Collaboration of clients: the pair of matrices (A, P) that defines an algorithm."""

from collections.abc import Collection, Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError

_TOLERANCE = 1e-6


class Collaboration:
    """Aggregation ``A`` (K models x N clients) and personalisation ``P`` (N clients x K models), both row-stochastic.

    ``w_k <- sum_i A_ki w_i`` builds the K shared models; client i uses ``sum_k P_ik w_k``. ``P @ A`` is the N x N
    collaboration matrix of FedCollab (Bao et al. 2023).

    Args:
        aggregation: A, shape [K, N]; entries >= 0, rows sum to 1.
        personalisation: P, shape [N, K]; entries >= 0, rows sum to 1. May be omitted for K = 1 (all clients use
            one model) and for K = N (client i uses model i).

    Raises:
        ConfigurationError: a shape, a sign or a row sum is wrong.

    Example:
        >>> together = Collaboration.fedavg([300, 100])
        >>> together.aggregation
        tensor([[0.7500, 0.2500]], dtype=torch.float64)
    """

    def __init__(self, aggregation: Tensor, personalisation: Tensor | None = None) -> None:
        aggregation = _matrix(aggregation)
        if aggregation.ndim != 2 or not aggregation.numel():
            shape = tuple(aggregation.shape)
            raise ConfigurationError(f"aggregation has shape {shape}: give a matrix [num_models, num_clients].")
        num_models, num_clients = aggregation.shape
        shape = (num_clients, num_models)
        if personalisation is None:
            if num_models not in (1, num_clients):
                what = f"with {num_models} models and {num_clients} clients, give a matrix of shape {shape}"
                raise ConfigurationError(f"personalisation is missing: {what}.")
            personalisation = torch.ones(shape) if num_models == 1 else torch.eye(num_clients)
        personalisation = _matrix(personalisation)
        if (given := tuple(personalisation.shape)) != shape:
            shapes = f"personalisation has shape {given}, aggregation {tuple(aggregation.shape)}"
            raise ConfigurationError(f"{shapes}: it must be {shape} = [num_clients, num_models].")
        for name, matrix in (("aggregation", aggregation), ("personalisation", personalisation)):
            _check_rows(name, matrix)
        if num_models == 1:  # all ones, in the memory of one number
            personalisation = personalisation.new_ones(1, 1).expand(shape)
        self.aggregation = aggregation
        self.personalisation = personalisation
        self._identities: tuple[frozenset[int], list[str]] | None = None

    @classmethod
    def fedavg(cls, num_samples: Sequence[int]) -> "Collaboration":
        """One model for all clients, weighted by samples: ``A = beta``, ``P = ones``."""
        beta = torch.as_tensor(num_samples, dtype=torch.float64)
        if not beta.numel() or not (beta >= 0).all() or beta.sum() <= 0:
            raise ConfigurationError(f"num_samples={list(num_samples)}: must be one count >= 0 each, not all zero.")
        return cls((beta / beta.sum()).unsqueeze(0))

    @classmethod
    def local(cls, num_clients: int) -> "Collaboration":
        """A model for each client alone: ``A = P = identity``."""
        return cls(torch.eye(num_clients))

    @classmethod
    def from_shares(cls, personalisation: Tensor, num_samples: Sequence[int] | Tensor) -> "Collaboration":
        """Clients contribute to a model in proportion to their use of it: ``A_ki = P_ik n_i / sum_j P_jk n_j``.

        A model without contributors is the average of all clients by samples.

        Args:
            personalisation: P, shape [N, K]; entries >= 0, rows sum to 1.
            num_samples: n >= 0, not all zero, length N; 0 for a client that uses models but contributes to none.
        """
        shares = _matrix(personalisation)
        samples = torch.as_tensor(num_samples, dtype=torch.float64)
        weights = shares.T * samples
        weights = torch.where(weights.sum(1, keepdim=True) > 0, weights, samples)
        return cls(weights / weights.sum(1, keepdim=True), shares)

    @classmethod
    def coalitions(cls, labels: Sequence[int], num_samples: Sequence[int]) -> "Collaboration":
        """One model per coalition: ``A`` is beta within the coalition, ``P`` is one-hot.

        Args:
            labels: coalition of each client, 0..K-1, length N; -1 for a client without a coalition, which uses all
                models by their samples and contributes to none.
            num_samples: length N.

        Raises:
            ConfigurationError: the number of labels is wrong, a label is skipped, or a coalition has no samples.
        """
        labels_tensor = torch.as_tensor(labels)
        counts = torch.as_tensor(num_samples, dtype=torch.float64)
        if labels_tensor.shape != counts.shape:
            raise ConfigurationError(f"{len(labels)} coalition labels for {len(num_samples)} clients: give one each.")
        alone = labels_tensor == -1
        used = torch.unique(labels_tensor[~alone]).tolist()
        if not used or used != list(range(len(used))):
            raise ConfigurationError(f"coalition labels {used}: number the coalitions 0..K-1 without gaps.")
        member = (labels_tensor.unsqueeze(1) == torch.arange(len(used))).double()
        totals = counts @ member
        for coalition, total in enumerate(totals.tolist()):
            if not total > 0:
                raise ConfigurationError(f"coalition {coalition} has {total:g} samples: join it with another one.")
        member[alone] = totals / totals.sum()
        return cls.from_shares(member, counts.masked_fill(alone, 0.0))

    @property
    def num_models(self) -> int:
        """K, number of shared models."""
        return self.aggregation.shape[0]

    @property
    def num_clients(self) -> int:
        """N, number of clients."""
        return self.aggregation.shape[1]

    @property
    def matrix(self) -> Tensor:
        """N x N collaboration matrix ``P @ A``: the part of each client in the model that another uses."""
        return self.personalisation @ self.aggregation

    def model_of(self, client: int) -> int | None:
        """The shared model that a client uses, or ``None`` if it uses a mixture."""
        row = self.personalisation[client]
        model = int(row.argmax())
        return model if row[model] == 1 else None

    @property
    def partition(self) -> list[int]:
        """Every client's coalition, length N: the model that it uses most; one that contributes to none is alone."""
        own = self.num_models + torch.arange(self.num_clients)
        return torch.where(self.aggregation.any(0), self.personalisation.argmax(1), own).tolist()

    def identities(self, absent: Collection[int] = ()) -> list[str]:
        """Identity of each model: its present clients and their shares, or its number if no client uses it alone."""
        key = frozenset(absent)
        if self._identities is None or self._identities[0] != key:
            rows = self.aggregation * (self.personalisation.T == 1)
            rows[:, sorted(key)] = 0.0
            rows = (rows / rows.sum(1, keepdim=True)).mul_(1e9).round_()  # whatever the rounding of A
            texts = [blake2b(row.numpy().tobytes(), digest_size=12).hexdigest() for row in rows]
            alone = rows.isfinite().all(1).tolist()
            self._identities = key, [text if alone[k] else f"{k} of {len(rows)}" for k, text in enumerate(texts)]
        return self._identities[1]

    def describe_use(self) -> str:
        """Describe which model each client uses, for records."""
        if self.num_models == 1:
            return "the shared model"
        share, used = self.personalisation.max(1)
        if (share != 1).any():
            return "each client's mixture of the shared models"
        if len(used.unique()) == self.num_clients:
            return "each client's own model"
        return "the model of each client's coalition"

    def state_dict(self) -> dict[str, Tensor]:
        """The matrices, for a checkpoint; without P if there is one model, so that it is all ones."""
        several = {"personalisation": self.personalisation} if self.num_models > 1 else {}
        return {"aggregation": self.aggregation, **several}

    @classmethod
    def from_state_dict(cls, state: dict[str, Tensor]) -> "Collaboration":
        """The collaboration that :meth:`state_dict` came from."""
        return cls(state["aggregation"], state.get("personalisation"))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Collaboration)
            and torch.equal(self.aggregation, other.aggregation)
            and torch.equal(self.personalisation, other.personalisation)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Collaboration(num_models={self.num_models}, num_clients={self.num_clients})"


def _matrix(values: Tensor) -> Tensor:
    """Copy in float64 on the CPU, independent of the caller's matrix."""
    return torch.as_tensor(values, dtype=torch.float64, device="cpu").detach().clone()


def _check_rows(name: str, matrix: Tensor) -> None:
    sums = matrix.sum(1)
    for wrong, fault in (
        (~matrix.isfinite().all(1), "has an entry that is not finite."),
        ((matrix < 0).any(1), "has a negative entry; all weights must be >= 0."),
        ((sums - 1).abs() > _TOLERANCE, "sums to {:.6g}, not 1; divide it by its sum."),
    ):
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise ConfigurationError(f"{name}: row {row} {fault.format(float(sums[row]))}")
