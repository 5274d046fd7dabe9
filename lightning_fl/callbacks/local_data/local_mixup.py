"""Mixup within a client, for any module.

Zhang, Cisse, Dauphin, Lopez-Paz: mixup: Beyond Empirical Risk Minimization, ICLR 2018
(https://arxiv.org/abs/1710.09412). Wang et al.: Mixup for Node and Graph Classification, WWW 2021, for graphs.
Wu et al.: DRFLM, 2022 (https://arxiv.org/abs/2204.07742), section 2.2: ``x~ = gamma g(x_j) + (1 - gamma) g(x_k)``,
``y~ = gamma y_j + (1 - gamma) y_k``, both samples of the same client.

The mixing is :func:`lightning_fl.functional.mix`; g is the identity, or the module up to ``layer``. A loss that
compares clients (``DROClientSampling``) needs a gamma per sample, not per batch as in Zhang et al.: mixed targets have
``gamma^2 + (1 - gamma)^2`` of the variance, so a client with a gamma of 0.5 looks easier than its equal with 0.99.

Differs from the paper: partners come from the same batch instead of the client's whole data set, as in Zhang et al.
Class labels, and floating targets of a module with ``task`` "multiclass" or "survival", are not mixed: the loss is the
gamma-weighted sum of the losses for both, the same for the cross-entropy. What the module logs in ``training_step`` is
then their plain mean; ``train/loss`` is weighted unless the module logs it. The mixture of two bounds of a value
(``y_bound``: at most, at least) is known if they have the same direction or one is exact; otherwise it is missing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, doc
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor, nn

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.pinned_memory import to_device
from lightning_fl.core.validation import checked_fields
from lightning_fl.data.graphs import is_graph
from lightning_fl.data.targets import batch_targets, with_batch_targets
from lightning_fl.engine.probes.layer_records import named_layer
from lightning_fl.engine.turn.services import refuse_manual_steps
from lightning_fl.functional.drflm import mix, sample_gamma
from lightning_fl.runtime.surface import TrainerSurface


@checked_fields
class LocalMixup(Callback):
    """Trains every client on mixtures of its own samples.

    Args:
        alpha: both parameters of the Beta distribution of gamma; larger values mix more, 0 never mixes.
        layer: submodule whose output is mixed, with one row per sample ("readout" for a graph network's embedding);
            ``None`` mixes the input of a batch ``(x, y)`` of tensors.
        per_sample: draw gamma per sample instead of per batch; not for class labels or censored times.
        target_key: key of a batch's targets, if they are not the last entry of a tuple, ``y`` of a graph batch, or
            under a usual key of a dict.

    Raises:
        ConfigurationError: ``alpha`` is negative, the layer does not exist, or its output has another number of rows;
            ``per_sample`` with class labels or censored times; without ``layer``, a batch is not a tuple of tensors.
    """

    method_name = "+ local mixup"
    joint_names: ClassVar = {"DRFA": "DRFLM"}

    alpha: Annotated[float, Ge(0), doc("0 turns mixing off")] = 0.2
    layer: str | None = None
    per_sample: bool = False
    target_key: str | None = None

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        if self.layer:
            named_layer(trainer.module, self.layer, "LocalMixup.layer")

    def around_training_step(
        self, trainer: TrainerSurface, batch: Any, compute: Callable[[Any], STEP_OUTPUT], generator: torch.Generator
    ) -> STEP_OUTPUT:
        targets = batch_targets(batch, self.target_key)
        unmixed = getattr(trainer.module, "task", None) in ("multiclass", "survival") or not targets.is_floating_point()
        if self.per_sample and unmixed:
            raise ConfigurationError("LocalMixup.per_sample=true: targets are classes or events. Set it to false.")
        drawn = sample_gamma(self.alpha, generator, (len(targets),) if self.per_sample else ())
        gamma = to_device(drawn, targets.device) if self.per_sample else float(drawn)
        partners = to_device(torch.randperm(len(targets), generator=generator), targets.device)
        if bool((drawn == 1.0).all()):
            return compute(batch)
        submodule = trainer.module.get_submodule(self.layer) if self.layer else None
        if submodule is None:
            if not isinstance(batch, list | tuple) or not all(isinstance(part, Tensor) for part in batch):
                what = f"LocalMixup cannot mix the input of a {type(batch).__name__}: set LocalMixup.layer"
                raise ConfigurationError(f"{what} to a submodule, such as readout of a graph network.")
            batch = type(batch)([mix(part, partners, gamma) for part in batch[:-1]] + [batch[-1]])

        def step(targets: Tensor) -> STEP_OUTPUT:
            mixed = with_batch_targets(batch, targets, self.target_key)
            if not unmixed and is_graph(batch) and "y_bound" in batch:
                own, other = batch.y_bound, batch.y_bound.index_select(0, partners)
                mixed = with_batch_targets(batch, targets.masked_fill(own * other < 0, torch.nan), self.target_key)
                mixed.y_bound = (own + other).sign()  # of a copy
            with nullcontext() if submodule is None else _mixed_output(submodule, partners, gamma):
                return compute(mixed)

        if not unmixed:
            return step(mix(targets, partners, gamma))
        refuse_manual_steps(trainer.module, "LocalMixup of classes")
        return _weighted(step(targets), step(targets.index_select(0, partners)), float(gamma))


@contextmanager
def _mixed_output(submodule: nn.Module, partners: Tensor, gamma: float | Tensor) -> Iterator[None]:
    """Mix the output of a submodule, which must run once."""
    times = 0

    def hook(module: nn.Module, inputs: Any, output: Any) -> Tensor:
        nonlocal times
        times += 1
        if not isinstance(output, Tensor) or output.ndim == 0 or len(output) != len(partners):
            got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            what = f"the submodule's output is {got} for {len(partners)} samples, not a row for each"
            raise ConfigurationError(f"LocalMixup.layer: {what}. Choose a later layer, after pooling.")
        return mix(output, partners, gamma)

    with submodule.register_forward_hook(hook):
        yield
    if times != 1:
        raise ConfigurationError(f"LocalMixup.layer: the submodule ran {times} times in a step. Choose another one.")


def _weighted(first: STEP_OUTPUT, second: STEP_OUTPUT, gamma: float) -> STEP_OUTPUT:
    """``gamma * first + (1 - gamma) * second`` of two training steps' losses; other entries are the first's."""
    if first is None or second is None:
        return None
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return gamma * first + (1 - gamma) * second
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    return {**first, "loss": gamma * first["loss"] + (1 - gamma) * second["loss"]}
