"""kNN-Per: every client's predictions are mixed with those of its own nearest training samples.

Marfoq, Neglia, Kameni, Vidal: Personalized Federated Learning through Local Memorization, ICML 2022
(https://arxiv.org/abs/2111.09360), Algorithm 1 and equations 4 to 6.

==========  ==================================================================  ==============
paper       here                                                                unit
==========  ==================================================================  ==============
phi         the input of ``layer``                                              features [d]
k           ``k``                                                               samples
d(x, x')    squared distance over d ``scale``                                   -
lambda_m    ``interpolation``, or the best of 0, 0.1, ..., 1 on the client's   share
            validation samples
==========  ==================================================================  ==============

Differs from the paper: regression, by the neighbours' weighted mean; of shares with as many right answers that of the
least loss. The layer's outputs are replaced while the run evaluates clients or predicts for them, inside and outside of
a fit. Models that are exported are those of training: the neighbours tell of a client's training samples, and are in no
file. docs/predict.md tells how :mod:`lightning_fl.functional.neighbors` mixes them in by hand.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from torch import Tensor, nn

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.errors import ConfigurationError, page
from lightning_fl.core.validation import Count, Fraction, Positive, checked
from lightning_fl.engine.probes.layer_records import LayerRecords, layer_records
from lightning_fl.engine.probes.layer_trial import layer_misses_targets
from lightning_fl.engine.probes.on_hosts import clients_without
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.functional.neighbors import Neighbors, Task, task_of
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["KNNPer"]

#: What modules of molecules call their tasks.
_TASKS: dict[object, Task] = {"regression": "values", "classification": "binary"}


class KNNPer(Callback):
    """Evaluates ``lambda p_knn(y | x) + (1 - lambda) p_model(y | x)``; training knows nothing of it.

    Args:
        k: neighbours; all samples of a client that has fewer.
        interpolation: the neighbours' share; "validation" for each client's best one on its validation samples.
        scale: of squared distances, relative to the number of features.
        layer: the submodule whose input is the embedding and whose output are logits, or values on the scale of the
            targets (on that of the buffers ``target_mean`` and ``target_scale`` of a module that has them). ``None``
            for the last ``nn.Linear``.
        task: "classes" for whole numbers, "binary" for yes and no in any number of columns, "values" for regression;
            "auto" by the module's ``task``, else by the targets.

    Raises:
        ConfigurationError: an argument is out of range; before training, there is no such layer or no
            ``validation_step``, the layer is given something else than one vector for each sample or gives something
            else than what ``validation_step`` predicts by, steps are compiled, or a client has no validation samples
            to choose its share by.
    """

    method_name = "kNN-Per"
    prediction_note = f"mixed with their clients' neighbours, which are not in a file: see {page('predict#neighbours')}"

    @checked
    def __init__(
        self,
        *,
        k: Count = 10,
        interpolation: Fraction | Literal["validation"] = 0.5,
        scale: Positive = 1.0,
        layer: str | None = None,
        task: Literal["auto", "classes", "binary", "values"] = "auto",
    ) -> None:
        self.k, self.interpolation, self.scale, self.layer, self.task = k, interpolation, scale, layer, task
        self._tried = False

    def setup(self, trainer: TrainerSurface, stage: str) -> None:
        """Compiled steps do not ask a layer for its hooks."""
        self._tried = False
        if trainer.settings.compile:
            raise ConfigurationError(
                "KNNPer replaces what a layer gives, and compiled steps do not ask layers: leave out trainer.compile."
            )

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        """Look for the layer, and for validation samples where they choose the share."""
        self._found(trainer)
        if self.interpolation != "validation":
            return
        if lacking := clients_without(trainer.loop, "val", range(trainer.num_clients)):
            raise _no_choice(lacking)

    def on_round_start(self, trainer: TrainerSurface) -> None:
        """Before the first round, try the layer on the first client."""
        if self._tried or self.interpolation == 0:
            return
        self._tried = True
        trainer.on_hosts([0], lambda client: self._try(trainer, client), "KNNPer tries its layer")

    def evaluated(self, trainer: TrainerSurface, model: str) -> str:
        """How many neighbours have a say."""
        if self.interpolation == 0:
            return model
        share = "chosen by validation" if self.interpolation == "validation" else f"{self.interpolation:g}"
        return f"{model}, interpolated with {self.k} neighbours (share {share})"

    @contextmanager
    def around_evaluation(self, trainer: TrainerSurface, client: int, weights: Weights) -> Iterator[None]:
        """Replace the layer's outputs."""
        if self.interpolation == 0:
            yield
            return
        name, layer = self._found(trainer)
        records = layer_records(trainer.loop, client, weights, "train", name, layer)
        assert records is not None  # whose targets there are
        store = self._neighbors(trainer, weights, name, records)
        share = self.interpolation
        if share == "validation":
            held_out = layer_records(trainer.loop, client, weights, "val", name, layer)
            if held_out is None:
                raise _no_choice([trainer.loop.name_of(client)])
            share = store.best_share(*held_out)
        if share == 0:
            yield
            return
        handle = layer.register_forward_hook(lambda _, given, made: store.mixed(given[0], made, float(share)))
        try:
            yield
        finally:
            handle.remove()

    def _try(self, trainer: TrainerSurface, client: int) -> None:
        """Refuse a layer that is not what the module predicts by."""
        name, layer = self._found(trainer)
        weights = trainer.client_model(client)
        records = layer_records(trainer.loop, client, weights, "train", name, layer)
        assert records is not None
        store = self._neighbors(trainer, weights, name, records)
        fault = layer_misses_targets(trainer.loop, client, weights, layer, store.task, store.target_scales)
        if fault:
            raise ConfigurationError(
                f"KNNPer, of the layer {name!r}: {fault}. Name the layer whose output are logits or values on the scale"
                " of the targets (KNNPer.layer), or what they are (KNNPer.task); a module that learns targets on"
                " another scale has buffers target_mean and target_scale."
            )

    def _found(self, trainer: TrainerSurface) -> tuple[str, nn.Module]:
        module = trainer.module
        if not trainer.loop.evaluates("val"):
            raise ConfigurationError(
                f"KNNPer embeds training samples by validation_step, and {type(module).__name__} has none: give it one."
            )
        layers = dict(module.named_modules())
        linear = [name for name, part in layers.items() if isinstance(part, nn.Linear)]
        if self.layer is None and not linear:
            raise ConfigurationError(
                f"KNNPer.layer: {type(module).__name__} has no nn.Linear; name the submodule whose input is the"
                f" embedding, of {', '.join(name for name in layers if name)}."
            )
        name = linear[-1] if self.layer is None else self.layer
        if name not in layers or not name:
            raise ConfigurationError(
                f"KNNPer.layer={name!r}: {type(module).__name__} has no such submodule; it has"
                f" {', '.join(name for name in layers if name)}."
            )
        return name, layers[name]

    def _neighbors(self, trainer: TrainerSurface, weights: Weights, name: str, records: LayerRecords) -> Neighbors:
        inputs, outputs, targets = records
        try:
            said = _TASKS.get(getattr(trainer.module, "task", None)) if self.task == "auto" else self.task
            task = said or task_of(outputs, targets)
            scales = _target_scales(trainer, weights) if task == "values" else None
            return Neighbors.of(inputs, outputs, targets, task, k=self.k, scale=self.scale, target_scales=scales)
        except ValueError as error:
            raise ConfigurationError(f"KNNPer, of the layer {name!r}: {error}") from error


def _no_choice(clients: list[str]) -> ConfigurationError:
    return ConfigurationError(
        f"KNNPer.interpolation=validation: {', '.join(clients)} without validation samples to choose the share by. Give"
        " the data some (data.init_args.split), or KNNPer a number."
    )


def _target_scales(trainer: TrainerSurface, weights: Weights) -> tuple[Tensor, Tensor] | None:
    """The mean and deviation that a module with some weights brings targets to its outputs' scale by."""
    flat = trainer.loop.flat
    present = flat.collect().clone()
    flat.load(weights)
    mean, deviation = (getattr(trainer.module, name, None) for name in ("target_mean", "target_scale"))
    found = (mean.clone(), deviation.clone()) if isinstance(mean, Tensor) and isinstance(deviation, Tensor) else None
    flat.load(present)
    return found
