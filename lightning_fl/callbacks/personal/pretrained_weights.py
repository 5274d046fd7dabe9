"""A run that begins with weights from a file: a foundation model's encoder, or what another run has learned."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_info
from torch import Tensor, nn

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.errors import ConfigurationError, FederatedError, listed
from lightning_fl.core.validation import Count, checked
from lightning_fl.data.cards.lookup import file_sha256
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.files.tensors import read_torch
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["PretrainedWeights", "pretrained_state"]

_MEND = "Give a state dict or a Lightning checkpoint that torch.save wrote."


class PretrainedWeights(Callback):
    """Initial weights of the module, or of a part of it, from a file.

    Rank zero reads the file, once, and the others have the weights from it. What is frozen is not trained, keeps its
    bits, and is counted as received by each client once, not in every round. The file's SHA-256 stands in the run's
    ``summary.json``. A run that goes on needs the file no more.

    Args:
        path: a Lightning checkpoint or a state dict, also with the state dict under "state_dict".
        module: name of the submodule that gets the weights, as ``named_modules`` gives it; "" for the whole module.
        prefix: what the file's keys begin with before the names inside that submodule; ``None`` for the submodule's
            own name where there are such keys, and else nothing. Keys that begin otherwise are not read.
        freeze: do not train these parameters.
        unfreeze_after: rounds after which they are trained; ``None`` for never. Only with ``freeze``.

    Raises:
        ConfigurationError: at the start of a run: there is no such file or submodule, or their keys and shapes differ.
    """

    several = True

    @checked
    def __init__(
        self,
        *,
        path: str,
        module: str = "encoder",
        prefix: str | None = None,
        freeze: bool = False,
        unfreeze_after: Count | None = None,
    ) -> None:
        if unfreeze_after is not None and not freeze:
            raise ConfigurationError(
                f"PretrainedWeights.unfreeze_after={unfreeze_after}: it is for freeze=true; leave it out or freeze."
            )
        self.path = path
        self.module = module
        self.prefix = prefix
        self.freeze = freeze
        self.unfreeze_after = unfreeze_after
        self._sha256 = ""
        self._names: list[str] = []

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        """Give the models these weights."""
        part = self._part(trainer)
        own = {id(parameter) for parameter in part.parameters()}
        self._names = [name for name, parameter in trainer.module.named_parameters() if id(parameter) in own]
        if not trainer.resumes_fit:
            self._load(trainer, part)
            self._record(trainer)
        if self.freeze:
            self._hold(trainer, {*trainer.federation.constant, *self._names})
            if not trainer.resumes_fit:
                size = sum(parameter.numel() * parameter.element_size() for parameter in part.parameters())
                trainer.federation.communication.add(dict.fromkeys(range(trainer.num_clients), size), {})

    def on_round_start(self, trainer: TrainerSurface) -> None:
        """Begin to train what was frozen so long."""
        if self.unfreeze_after is not None and trainer.federation.current_round == self.unfreeze_after:
            self._hold(trainer, trainer.federation.constant - {*self._names})

    def state_dict(self) -> dict[str, Any]:
        """The file's sum."""
        return {"sha256": self._sha256}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the sum."""
        self._sha256 = str(state.get("sha256", ""))

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        """Note the file, also of a run that goes on."""
        self._record(trainer)

    def _part(self, trainer: TrainerSurface) -> nn.Module:
        whole = trainer.module
        assert whole is not None
        try:
            part = whole.get_submodule(self.module)
        except AttributeError as error:
            raise ConfigurationError(
                f"PretrainedWeights.module={self.module!r}: {type(whole).__name__} has no such submodule; it has"
                f" {listed([name for name, _ in whole.named_children()])}."
            ) from error
        return part

    def _load(self, trainer: TrainerSurface, part: nn.Module) -> None:
        problem, state = "", {}
        if trainer.is_global_zero:
            try:
                state = pretrained_state(Path(self.path), part, self.module, self.prefix)
                self._sha256 = file_sha256(Path(self.path))
            except FederatedError as error:
                problem = str(error)
        problem, self._sha256 = trainer.processes.of_ranks((problem, self._sha256))[0]
        if problem:
            raise ConfigurationError(problem)
        flat, models = trainer.loop.flat, trainer.federation.models
        for number, model in enumerate(models):
            flat.load(model)
            if trainer.is_global_zero:
                part.load_state_dict(state)
            models[number] = _agreed(trainer, flat.collect().clone())
        flat.load(models[0])
        rank_zero_info(
            f"{self.module or 'the module'}: {len(part.state_dict())} tensors from {Path(self.path).name}"
            f" (SHA-256 {self._sha256[:12]}...){', frozen' if self.freeze else ''}"
        )

    def _hold(self, trainer: TrainerSurface, names: set[str] | frozenset[str]) -> None:
        trainer.federation.keep_constant(trainer.loop.flat, names)

    def _record(self, trainer: TrainerSurface) -> None:
        about = {"file": Path(self.path).name, "sha256": self._sha256, "module": self.module, "freeze": self.freeze}
        kept = trainer.run_log.summary.setdefault("pretrained", [])
        if about not in kept:
            kept.append(about)


def pretrained_state(path: Path, part: nn.Module, name: str, prefix: str | None = None) -> dict[str, Tensor]:
    """The state dict in a file that fits a part of a module.

    Args:
        path: the file.
        part: the submodule.
        name: its name in the module.
        prefix: as of :class:`PretrainedWeights`.

    Raises:
        ConfigurationError: there is no such file, it holds no tensors, or keys and shapes are not those of the part.
    """
    place = f"PretrainedWeights.path={str(path)!r}"
    if not path.is_file():
        raise ConfigurationError(f"{place}: there is no such file.")
    content = read_torch(path, "a file of weights", _MEND, error=ConfigurationError, place=place)
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not any(isinstance(value, Tensor) for value in content.values()):
        raise ConfigurationError(f"{place} holds no state dict. {_MEND}")
    prefixes = [prefix] if prefix is not None else [f"{name}." if name else "", ""]
    begin = next((p for p in prefixes if any(str(key).startswith(p) for key in content)), prefixes[-1])
    given = {str(key)[len(begin) :]: value for key, value in content.items() if str(key).startswith(begin)}
    expected = part.state_dict()
    words = [
        f"the file lacks {listed(sorted(expected.keys() - given.keys()), 5)}" if expected.keys() - given.keys() else "",
        f"it has besides {listed(sorted(given.keys() - expected.keys()), 5)}" if given.keys() - expected.keys() else "",
    ]
    words += [
        f"{key} is of shape {_shape(given[key])} in the file and {_shape(expected[key])} in the model"
        for key in expected
        if key in given and _shape(given[key]) != _shape(expected[key])
    ][:3]
    if any(words):
        raise ConfigurationError(
            f"{place} does not fit {name or type(part).__name__}: {'; '.join(filter(None, words))}. Give the model the"
            " sizes of the file, or name another PretrainedWeights.module or prefix."
        )
    if wrong := [key for key, value in given.items() if value.is_floating_point() and not value.isfinite().all()]:
        raise ConfigurationError(f"{place}: {listed(wrong, 5)} hold numbers that are not finite. Give another file.")
    return given


def _shape(value: Any) -> list[int] | str:
    return list(value.shape) if isinstance(value, Tensor) else type(value).__name__


def _agreed(trainer: TrainerSurface, weights: Weights) -> Weights:
    """Rank zero's."""
    if trainer.processes.several:
        for vector in weights.vectors.values():
            trainer.strategy.broadcast_bytes_(vector, 0)
    return weights
