"""A model of molecules: predicts one or more numbers, such as a solubility, from the molecular graph."""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from torchmetrics import MeanAbsoluteError, MeanSquaredError, Metric

from lightning_fl.errors import ConfigurationError, DataError
from lightning_fl.models.encoders import EDGE_ENCODERS, EncoderName, build_encoder
from lightning_fl.models.optimizers import OptimizerName, check_optimizer, make_optimizer
from lightning_fl.options import check_counts, check_numbers

if TYPE_CHECKING:
    from lightning_fl.models.gcn import GCN

__all__ = ["MoleculeModel", "ReadoutName", "masked_mse", "target_moments"]

ReadoutName = Literal["mean", "sum", "max", "set2set"]

_SET2SET_STEPS = 3


def masked_mse(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean squared error over the entries of ``target`` that are present (not NaN).

    Args:
        prediction: [G, T].
        target: [G, T], NaN where a value is missing.

    Returns:
        A number; 0 with zero gradient where nothing is present.
    """
    present = ~target.isnan()
    # The error is masked before it is squared: a NaN that reaches the square would make the gradient NaN.
    error = torch.where(present, prediction - target, 0.0)
    return error.square().sum() / present.sum().clamp(min=1)


def target_moments(targets: Tensor) -> Tensor:
    """Count, mean and sum of squared deviations of the present entries of each target, in float64.

    Args:
        targets: [n, T], NaN where a value is missing.

    Returns:
        [3, T]; mean and deviations are 0 where the count is 0.
    """
    targets = targets.double()
    count = (~targets.isnan()).sum(dim=0)
    mean = targets.nansum(dim=0) / count.clamp(min=1)
    return torch.stack([count, mean, (targets - mean).square().nansum(dim=0)])


def _pool_moments(moments: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [T] and population standard deviation [T] of several parts' :func:`target_moments` [parts, 3, T].

    By Chan, Golub and LeVeque 1983: the squared deviations are those within the parts plus those of their means.
    NaN for a target with no value.
    """
    count, mean, deviations = moments.unbind(dim=1)
    total = count.sum(dim=0)
    pooled_mean = (count * mean).sum(dim=0) / total
    pooled_deviations = (deviations + count * (mean - pooled_mean).square()).sum(dim=0)
    return pooled_mean, (pooled_deviations / total).sqrt()


class MoleculeModel(LightningModule):
    """Regression on molecular graphs: atoms are encoded, read out to one vector a molecule, and mapped to the targets.

    Works on PyG batches: ``batch.x`` [V, A] atom features, ``batch.edge_index`` [2, E], ``batch.edge_attr`` [E, B] bond
    features, ``batch.batch`` [V] the molecule of each atom, ``batch.y`` [G, T] targets with NaN for a missing value,
    ``batch.num_graphs`` G. Predictions, ``rmse`` and ``mae`` are in the data's units; ``loss`` is the mean squared
    error of the standardised targets, so that one learning rate fits any unit.

    The parts are ``encoder``, ``readout`` and ``head``; the output of ``readout`` is the [G, D] graph embeddings and
    nothing but the head comes after it, so that a forward hook there can mix the embeddings of two molecules.

    The scale of the targets is learned at the start of the first fit, from training data only, and stays: a model
    that is trained further elsewhere keeps the scale its weights belong to. A trainer with a method
    ``target_statistics() -> (mean [T], std [T])`` gives it (over all clients); with any other the training loader is
    read once. In a loop without Lightning's hooks call :meth:`set_target_statistics`.

    Args:
        encoder: "gcn", "gat" or "mpnn", see :func:`lightning_fl.models.encoders.build_encoder`. A "gcn" does not see
            the bond features.
        node_dim: number A of atom features; ``None`` for that of this package's featuriser.
        edge_dim: number B of bond features; ``None`` for that of this package's featuriser.
        hidden_dim: size of the atom vectors and of the head's hidden layer.
        num_layers: message passing layers (steps, for "mpnn").
        readout: "mean", "sum" or "max" over a molecule's atoms, or "set2set" (Vinyals et al. 2016,
            https://arxiv.org/abs/1511.06391; twice as wide). A "sum", and its gradient, grow with the molecule: it
            learns fast under plain "sgd", but where it diverges it needs less momentum or a smaller learning rate.
        dropout: probability that an entry of a hidden layer is zeroed in training.
        num_targets: number T of values to predict.
        learning_rate: of the optimiser.
        optimizer: "sgd" or "adam".
        momentum: of "sgd".
        weight_decay: L2 penalty of the optimiser.
        standardize_targets: learn the targets' mean and scale; else they are taken as they are (0 and 1).

    Raises:
        ConfigurationError: an argument is out of range, or a batch does not fit ``node_dim``, ``edge_dim`` or
            ``num_targets``.
        DataError: a target has no finite training data to learn its scale from.

    Example:
        >>> model = MoleculeModel(encoder="mpnn", node_dim=9, edge_dim=4, hidden_dim=64)
        >>> model.hparams.hidden_dim
        64
    """

    target_mean: Tensor
    target_scale: Tensor
    target_learned: Tensor

    def __init__(
        self,
        *,
        encoder: EncoderName = "gcn",
        node_dim: int | None = None,
        edge_dim: int | None = None,
        hidden_dim: int = 128,
        num_layers: int = 3,
        readout: ReadoutName = "mean",
        dropout: float = 0.0,
        num_targets: int = 1,
        learning_rate: float = 0.01,
        optimizer: OptimizerName = "sgd",
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        standardize_targets: bool = True,
    ) -> None:
        super().__init__()
        if node_dim is None or edge_dim is None:
            # Imported here, for RDKit is slow to load and whoever brings other features does not need it.
            from lightning_fl.data.molecules.featurizer import ATOM_DIM, BOND_DIM

            node_dim = ATOM_DIM if node_dim is None else node_dim
            edge_dim = BOND_DIM if edge_dim is None else edge_dim
        _check_choice("encoder", encoder, get_args(EncoderName))
        _check_choice("readout", readout, get_args(ReadoutName))
        check_optimizer(self, optimizer, learning_rate, momentum, weight_decay)
        check_counts(self, node_dim=node_dim, edge_dim=edge_dim, num_targets=num_targets)
        check_counts(self, hidden_dim=hidden_dim, num_layers=num_layers)
        check_numbers(self, dropout=dropout, at_least=0, below=1)
        # After the two sizes are known, so that a checkpoint says numbers and not "whatever the featuriser had".
        self.save_hyperparameters()
        self.encoder = build_encoder(
            encoder,
            node_dim=node_dim,
            edge_dim=edge_dim,
            hidden_dim=hidden_dim,
            num_layers=num_layers,
            dropout=dropout,
        )
        self.readout = _build_readout(readout, hidden_dim)
        self.head = nn.Sequential(
            nn.Linear(2 * hidden_dim if readout == "set2set" else hidden_dim, hidden_dim),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden_dim, num_targets),
        )
        self.register_buffer("target_mean", torch.zeros(num_targets))
        self.register_buffer("target_scale", torch.ones(num_targets))
        self.register_buffer("target_learned", torch.tensor(0))
        self.val_rmse, self.val_mae = MeanSquaredError(squared=False), MeanAbsoluteError()
        self.test_rmse, self.test_mae = MeanSquaredError(squared=False), MeanAbsoluteError()

    def forward(self, batch: Any) -> Tensor:
        """Predictions [G, T] in the data's units."""
        return self._to_data_units(self._predict_standardized(batch))

    def on_fit_start(self) -> None:
        """Learn the targets' scale from the training data, once."""
        if not self.hparams["standardize_targets"] or self.target_learned:
            return
        statistics = getattr(self.trainer, "target_statistics", None)
        if statistics is not None:
            self.set_target_statistics(*statistics())
        else:
            self.trainer.fit_loop.setup_data()
            self.set_target_statistics(*self._loader_statistics(self.trainer.train_dataloader))

    def set_target_statistics(self, mean: Tensor, std: Tensor) -> None:
        """Fix the shift [T] and the scale [T] of the targets, in the data's units; a scale of 0 is taken as 1."""
        mean, std = torch.as_tensor(mean).double(), torch.as_tensor(std).double()
        if mean.shape != self.target_mean.shape or std.shape != self.target_scale.shape:
            raise ConfigurationError(
                f"num_targets={self.hparams['num_targets']}: the training data give means of shape {list(mean.shape)} "
                f"and scales of shape {list(std.shape)}; set num_targets to the number of target columns."
            )
        missing = (~(mean.isfinite() & std.isfinite())).nonzero().flatten().tolist()
        if missing:
            raise DataError(
                f"targets {missing} (counted from 0) have no finite mean and scale in the training data: "
                "leave these columns out, or look for infinite values in them."
            )
        self.target_mean.copy_(mean)
        self.target_scale.copy_(torch.where(std > 0, std, 1.0))
        self.target_learned.fill_(1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss on standardised targets."""
        loss = self._loss(self._predict_standardized(batch), batch)
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=batch.num_graphs)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log ``val/loss``, ``val/rmse`` and ``val/mae``."""
        self._evaluate(batch, "val", self.val_rmse, self.val_mae)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Log ``test/loss``, ``test/rmse`` and ``test/mae``."""
        self._evaluate(batch, "test", self.test_rmse, self.test_mae)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Predictions [G, T] in the data's units."""
        return self(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimiser that the arguments describe."""
        return make_optimizer(self.parameters(), self.hparams)

    def _predict_standardized(self, batch: Any) -> Tensor:
        self._check_features(batch)
        return self.head(self._embed(batch))

    def _embed(self, batch: Any) -> Tensor:
        """What the readout gives, [G, D]."""
        # dim_size, for the last molecules of a batch may have no atom and still need a row.
        molecules = {"index": batch.batch, "dim_size": batch.num_graphs}
        encoder = self._early_encoder(batch.x)
        if encoder is not None:
            return self.readout(encode=partial(encoder.read_out, batch.x, batch.edge_index, batch.batch), **molecules)
        return self.readout(self.encoder(batch.x, batch.edge_index, edge_attr=batch.edge_attr), **molecules)

    def _early_encoder(self, x: Tensor) -> "GCN | None":
        """The encoder, if it may sum a molecule's atoms before its last layer and nobody looks between."""
        from lightning_fl.models.gcn import GCN
        from lightning_fl.models.readouts import LinearReadout

        encoder = self.encoder
        if not isinstance(encoder, GCN) or not isinstance(self.readout, LinearReadout):
            return None
        return encoder if encoder.can_read_out(x) else None

    def _loss(self, prediction: Tensor, batch: Any) -> Tensor:
        self._check_targets(batch)
        target = (batch.y.to(self.target_mean) - self.target_mean) / self.target_scale
        return masked_mse(prediction.to(target), target)

    def _to_data_units(self, standardized: Tensor) -> Tensor:
        # Out of the half precision of an autocast region first: the mean may be large beside the differences.
        return standardized.to(self.target_mean) * self.target_scale + self.target_mean

    def _evaluate(self, batch: Any, split: str, rmse: Metric, mae: Metric) -> None:
        standardized = self._predict_standardized(batch)
        loss = self._loss(standardized, batch)
        present = ~batch.y.isnan()
        count = int(present.sum())
        if not count:
            return
        prediction = self._to_data_units(standardized)
        rmse.update(prediction[present], batch.y[present])
        mae.update(prediction[present], batch.y[present])
        self.log_dict({f"{split}/rmse": rmse, f"{split}/mae": mae}, on_epoch=True, batch_size=batch.num_graphs)
        self.log(f"{split}/loss", loss, on_epoch=True, batch_size=count)

    def _loader_statistics(self, loader: Iterable[Any] | None) -> tuple[Tensor, Tensor]:
        targets = []
        # The pass must not move the random numbers on which the order of the batches depends.
        with isolate_rng():
            for batch in loader or ():
                self._check_targets(batch)
                targets.append(batch.y)
        if not targets:
            raise DataError(
                "the training loader has no batch to learn the targets' scale from: give training data, or call "
                "set_target_statistics or set standardize_targets=False where the model is not trained."
            )
        moments = target_moments(torch.cat(targets)).to(self.device)
        gathered = self.all_gather(moments)  # a leading dimension only where there are several processes
        assert isinstance(gathered, Tensor)
        return _pool_moments(gathered.reshape(-1, *moments.shape))

    def _check_features(self, batch: Any) -> None:
        if batch.x.size(-1) != self.hparams["node_dim"]:
            raise ConfigurationError(
                f"node_dim={self.hparams['node_dim']}: the batch has {batch.x.size(-1)} features per atom; "
                f"set node_dim={batch.x.size(-1)}, or use the featuriser that the model was made for."
            )
        if self.hparams["encoder"] not in EDGE_ENCODERS:
            return
        if batch.edge_attr is None or batch.edge_attr.dim() != 2:
            found = "none" if batch.edge_attr is None else f"some of shape {list(batch.edge_attr.shape)}"
            raise ConfigurationError(
                f"encoder={self.hparams['encoder']!r} needs bond features, the batch has {found}; "
                "give edge_attr of shape [bonds, features], or take encoder='gcn'."
            )
        if batch.edge_attr.size(1) != self.hparams["edge_dim"]:
            raise ConfigurationError(
                f"edge_dim={self.hparams['edge_dim']}: the batch has {batch.edge_attr.size(1)} features per bond; "
                f"set edge_dim={batch.edge_attr.size(1)}, or use the featuriser that the model was made for."
            )

    def _check_targets(self, batch: Any) -> None:
        expected = (batch.num_graphs, self.hparams["num_targets"])
        if tuple(batch.y.shape) != expected:
            raise ConfigurationError(
                f"num_targets={expected[1]}: the batch of {expected[0]} molecules has y of shape {list(batch.y.shape)} "
                f"instead of {list(expected)}; set num_targets to the number of target columns and give every "
                "molecule y of shape [1, num_targets]."
            )


def _build_readout(name: ReadoutName, dim: int) -> nn.Module:
    from torch_geometric.nn.aggr import MaxAggregation, Set2Set

    from lightning_fl.models.readouts import LinearReadout

    if name == "set2set":
        return Set2Set(dim, processing_steps=_SET2SET_STEPS)
    return MaxAggregation() if name == "max" else LinearReadout(name)


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigurationError(f"{name}={value!r}: give one of {', '.join(map(repr, allowed))}.")
