"""Initial weights from a file, such as a foundation model's encoder."""

from collections.abc import Mapping
from pathlib import Path

from lightning.fabric.utilities.rank_zero import rank_zero_info
from torch import Tensor, nn

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.errors import ConfigurationError, FederatedError, cut, listed
from lightning_fl.core.validation import Count, checked_fields
from lightning_fl.data.cards.lookup import file_sha256
from lightning_fl.engine.probes.layer_records import named_layer
from lightning_fl.files.tensors import read_torch
from lightning_fl.runtime.surface import TrainerSurface

_REMEDY = "Use a state dict or a Lightning checkpoint written by torch.save."


@checked_fields
class PretrainedWeights(Callback):
    """Loads initial weights of the module, or of a submodule, from a file.

    Rank zero reads the file and sends the weights to the others. Frozen parameters keep their bits and count as
    received by each client once. ``summary.json`` records the file's SHA-256. A resumed run does not need the file.

    Args:
        path: a Lightning checkpoint or a state dict, also under the key "state_dict".
        module: name of the submodule; "" for the whole module.
        prefix: of the keys to load, with its dot: "gnn."; ``None`` for the submodule's name, or "" if no key has it.
        freeze: do not train these parameters.
        unfreeze_after: number of rounds after which they are trained; ``None`` for never. Only with ``freeze``.

    Raises:
        ConfigurationError: at the start of a run, the file or submodule does not exist, or keys or shapes differ.
    """

    role = "initial weights"
    several = True
    saved = ("_sha256",)

    path: str
    module: str = "encoder"
    prefix: str | None = None
    freeze: bool = False
    unfreeze_after: Count | None = None

    def __post_init__(self) -> None:
        if self.unfreeze_after is not None and not self.freeze:
            raise ConfigurationError(f"PretrainedWeights.unfreeze_after={self.unfreeze_after} needs freeze=true.")
        self._sha256 = ""

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        part: nn.Module = trainer.module
        if self.module:
            part = named_layer(part, self.module, "PretrainedWeights.module")
        own = {id(parameter) for parameter in part.parameters()}
        self._names = [name for name, parameter in trainer.module.named_parameters() if id(parameter) in own]
        if not trainer.resumes_fit:
            self._load(trainer, part)
            self._record(trainer)
        if self.freeze:
            trainer.federation.keep_constant(trainer.loop.flat, {*trainer.federation.constant, *self._names})
            if not trainer.resumes_fit:
                size = sum(parameter.numel() * parameter.element_size() for parameter in part.parameters())
                trainer.federation.communication.add(dict.fromkeys(range(trainer.num_clients), size), {})

    def on_round_start(self, trainer: TrainerSurface) -> None:
        if self.unfreeze_after is not None and trainer.federation.current_round == self.unfreeze_after:
            trainer.federation.keep_constant(trainer.loop.flat, trainer.federation.constant - {*self._names})

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        self._record(trainer)

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
            models[number] = flat.collect().clone()
            for vector in models[number].vectors.values() if trainer.processes.several else ():
                trainer.strategy.broadcast_bytes_(vector, 0)
        flat.load(models[0])
        rank_zero_info(
            f"{self.module or 'the module'}: {len(part.state_dict())} tensors from {Path(self.path).name}"
            f" (SHA-256 {self._sha256[:12]}...){', frozen' if self.freeze else ''}"
        )

    def _record(self, trainer: TrainerSurface) -> None:
        about = {"file": Path(self.path).name, "sha256": self._sha256, "module": self.module, "freeze": self.freeze}
        kept = trainer.run_log.summary.setdefault("pretrained", [])
        if about not in kept:
            kept.append(about)


def pretrained_state(path: Path, part: nn.Module, name: str, prefix: str | None = None) -> dict[str, Tensor]:
    """Read the state dict of a submodule and its ``name`` from a file, and load it into the submodule ``part``."""
    place = f"PretrainedWeights.path={str(path)!r}"
    if not path.is_file():
        raise ConfigurationError(f"{place}: no such file.")
    content = read_torch(path, "a file of weights", _REMEDY, error=ConfigurationError, place=place)
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not any(isinstance(value, Tensor) for value in content.values()):
        raise ConfigurationError(f"{place} has no state dict. {_REMEDY}")
    prefixes = [prefix] if prefix is not None else [f"{name}." if name else "", ""]
    begin = next((p for p in prefixes if any(str(key).startswith(p) for key in content)), prefixes[-1])
    given = {str(key)[len(begin) :]: value for key, value in content.items() if str(key).startswith(begin)}
    tensors = {key: value for key, value in given.items() if isinstance(value, Tensor)}
    if wrong := [key for key, value in tensors.items() if value.is_floating_point() and not value.isfinite().all()]:
        raise ConfigurationError(f"{place}: {listed(wrong, 5)} have values that are not finite. Use another file.")
    try:
        part.load_state_dict(given)
    except (RuntimeError, TypeError) as error:
        lines = [cut(line.strip("\t ."), 200) for line in str(error).splitlines()]
        what = f"{place} does not fit {name or type(part).__name__}: {listed(lines[1:] or lines, 6)}"
        remedy = "Give the model the sizes of the file, or name another PretrainedWeights.module or prefix"
        raise ConfigurationError(f"{what}. {remedy}.") from error
    return given
