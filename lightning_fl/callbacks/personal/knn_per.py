"""kNN-Per: interpolation of a model's predictions with those of the client's nearest training samples.

Marfoq, Neglia, Kameni, Vidal: Personalized Federated Learning through Local Memorization, ICML 2022
(https://arxiv.org/abs/2111.09360), Algorithm 1 and equations 4 to 6.

The formulas are in :mod:`lightning_fl.functional.neighbors`. Differs from the paper: also regression, by the
neighbours' weighted mean; ties between shares are broken by the loss. The layer's outputs are replaced while the run
evaluates clients or predicts. Exported models lack the neighbours, which would reveal training samples; docs/predict.md
shows how to add them with :mod:`lightning_fl.functional.neighbors`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from torch import Tensor, nn

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.errors import ConfigurationError, page
from lightning_fl.core.validation import Count, Fraction, Positive, checked_fields
from lightning_fl.engine.probes.layer_records import layer_misses_targets, layer_records, named_layer
from lightning_fl.engine.probes.on_hosts import clients_without
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.functional.neighbors import Neighbors, Task, task_of
from lightning_fl.runtime.surface import TrainerSurface

#: Task names of molecule models.
_TASKS: dict[object, Task] = {"regression": "values", "classification": "binary"}


@checked_fields
class KNNPer(Callback):
    """Evaluates ``lambda p_knn(y | x) + (1 - lambda) p_model(y | x)``; training is not affected.

    Args:
        k: number of neighbours; a client with fewer training samples uses all of them.
        interpolation: lambda; "validation" for the best of 0, 0.1, ..., 1 on each client's validation samples.
        scale: of squared distances, relative to the number of features.
        layer: submodule with the embedding as input, and logits or target values as output (scaled by the module's
            buffers ``target_mean`` and ``target_scale``, if present). ``None`` for the last ``nn.Linear``.
        task: "classes" for class indices, "binary" for binary columns, "values" for regression; "auto" by the module's
            ``task``, else by the targets.

    Raises:
        ConfigurationError: before training, the layer or ``validation_step`` is missing, the layer's input is not a
            vector per sample or its output is not what ``validation_step`` predicts with, steps are compiled, or a
            client lacks the validation samples for its lambda.
    """

    method_name = "kNN-Per"
    traits = ("own_samples",)
    prediction_note = f"mixed with their clients' neighbours, which are not in a file: see {page('predict#neighbours')}"

    k: Count = 10
    interpolation: Fraction | Literal["validation"] = 0.5
    scale: Positive = 1.0
    layer: str | None = None
    task: Literal["auto", "classes", "binary", "values"] = "auto"

    def setup(self, trainer: TrainerSurface, stage: str) -> None:
        """Refuse compiled steps, which bypass the hooks of layers."""
        self._tried = False
        if trainer.settings.compile:
            raise ConfigurationError("KNNPer cannot replace a layer's outputs in compiled steps: omit trainer.compile.")

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        self._found(trainer)
        if self.interpolation != "validation":
            return
        if lacking := clients_without(trainer.loop, "val", range(trainer.num_clients)):
            raise _no_choice(lacking)

    def on_round_start(self, trainer: TrainerSurface) -> None:
        """Test the layer on the first client before the first round."""
        if self._tried or self.interpolation == 0:
            return
        self._tried = True
        trainer.on_hosts([0], lambda client: self._try(trainer, client), "KNNPer tries its layer")

    def evaluated(self, trainer: TrainerSurface, model: str) -> str:
        if self.interpolation == 0:
            return model
        share = "chosen by validation" if self.interpolation == "validation" else f"{self.interpolation:g}"
        return f"{model}, interpolated with {self.k} neighbours (share {share})"

    @contextmanager
    def around_evaluation(self, trainer: TrainerSurface, client: int, weights: Weights) -> Iterator[None]:
        if self.interpolation == 0:
            yield
            return
        name, layer = self._found(trainer)
        store = self._neighbors(trainer, client, weights, name, layer)
        share = self.interpolation
        if share == "validation":
            held_out = layer_records(trainer.loop, client, weights, "val", name, layer)
            if held_out is None:
                raise _no_choice([trainer.loop.name_of(client)])
            share = store.best_share(*held_out)
        if share == 0:
            yield
            return
        with layer.register_forward_hook(lambda _, given, made: store.mixed(given[0], made, float(share))):
            yield

    def _try(self, trainer: TrainerSurface, client: int) -> None:
        """Refuse a layer whose output is not what the module predicts with."""
        name, layer = self._found(trainer)
        weights = trainer.client_model(client)
        store = self._neighbors(trainer, client, weights, name, layer)
        fault = layer_misses_targets(trainer.loop, client, weights, layer, store.task, store.target_scales)
        if fault:
            remedy = "Set KNNPer.layer to the layer whose outputs are logits or target values, or set KNNPer.task"
            scaled = "a module with scaled targets needs the buffers target_mean and target_scale"
            raise ConfigurationError(f"KNNPer, of the layer {name!r}: {fault}. {remedy}; {scaled}.")

    def _found(self, trainer: TrainerSurface) -> tuple[str, nn.Module]:
        module = trainer.module
        if not trainer.loop.evaluator.evaluates("val"):
            raise ConfigurationError(f"KNNPer needs a validation_step, which {type(module).__name__} must define.")
        layers = dict(module.named_modules())
        linear = [name for name, part in layers.items() if isinstance(part, nn.Linear)]
        if self.layer is None and not linear:
            choices = ", ".join(filter(None, layers))
            raise ConfigurationError(f"KNNPer.layer: {type(module).__name__} has no nn.Linear; choose from {choices}.")
        name = linear[-1] if self.layer is None else self.layer
        return name, named_layer(module, name, "KNNPer.layer")

    def _neighbors(
        self, trainer: TrainerSurface, client: int, weights: Weights, name: str, layer: nn.Module
    ) -> Neighbors:
        """The client's training samples as this layer sees them."""
        records = layer_records(trainer.loop, client, weights, "train", name, layer)
        assert records is not None  # a client has training samples
        inputs, outputs, targets = records
        try:
            said = _TASKS.get(getattr(trainer.module, "task", None)) if self.task == "auto" else self.task
            task = said or task_of(outputs, targets)
            scales = _target_scales(trainer, weights) if task == "values" else None
            return Neighbors.of(inputs, outputs, targets, task, k=self.k, scale=self.scale, target_scales=scales)
        except ValueError as error:
            raise ConfigurationError(f"KNNPer, of the layer {name!r}: {error}") from error


def _no_choice(clients: list[str]) -> ConfigurationError:
    what = f"{', '.join(clients)} have no validation samples"
    return ConfigurationError(f"KNNPer.interpolation=validation: {what}: set data.split, or a number.")


def _target_scales(trainer: TrainerSurface, weights: Weights) -> tuple[Tensor, Tensor] | None:
    """Mean and deviation by which a module with these weights scales its targets."""
    with trainer.loop.flat.preserved():
        trainer.loop.flat.load(weights)
        mean, deviation = (getattr(trainer.module, name, None) for name in ("target_mean", "target_scale"))
        if isinstance(mean, Tensor) and isinstance(deviation, Tensor):
            return mean.clone(), deviation.clone()
        return None
