"""Identity of a run: setting -> value as text, compared between ranks and with the checkpoint that a run resumes from.

Ranks started with different recipes or data would wait for each other, or average models that do not belong together.
"""

import hashlib
import inspect
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch.profilers import PassThroughProfiler

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.client_names import are_many
from lightning_fl.core.errors import CheckpointError, ConfigurationError, cut
from lightning_fl.data.module import FederatedDataModule
from lightning_fl.engine.settings import AUTOMATIC, Settings
from lightning_fl.engine.turn.module_callbacks import only_watches
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.runtime.checkpoint_fields import class_path
from lightning_fl.runtime.surface import TrainerSurface
from lightning_fl.strategies.federated import FederatedStrategy
from lightning_fl.version import __version__

#: Settings that do not change any model: length of the run, what is shown and saved.
_CHANGES_NOTHING = (
    *(f"trainer.{one.name}" for one in fields(Settings) if not one.metadata.get("decides", True)),
    "ModelCheckpoint.every_n_rounds",
    "ModelCheckpoint.save_models",
    "data.eval_batch_size",
)
#: Names of classes, compared even where a file has such a name.
_CLASSES = ("model", "data", "trainer.strategy", "trainer.callbacks")
#: Entries of a data module's description that are compared client by client.
_SIZES = ("num_clients", "client_names", "clients", "client_sizes", "num_samples")
#: Prefixes of what the result of an evaluation depends on; and the exceptions.
_OF_EVALUATIONS = ("model", "data", "trainer.strategy", "trainer.precision")
_OF_TRAINING = ("data.batch_size", "data.shuffle", "data.drop_last")
_MOST_DIFFERENCES = 5
_MOST_CHARACTERS = 200


def check_same(strategy: FederatedStrategy, own: Mapping[str, str], what: str) -> None:
    """Refuse ranks whose recipe, data set or model (``what``) differ. Called on every rank.

    Names that a rank lacks are not compared. The error names what differs, on which rank, and is the same on all.
    """
    digest = _digest(repr(sorted(own.items())))
    if len(set(strategy.exchange({strategy.global_rank: digest}).values())) == 1:
        return
    of_ranks = strategy.exchange({strategy.global_rank: dict(own)})
    first, names = of_ranks[0], strategy.rank_names
    for rank, found in of_ranks.items():
        different = {name: (found[name], first[name]) for name in first if found.get(name, first[name]) != first[name]}
        if different:
            text = _listed(different, "{name} is {0} there, {1} here", 300)
            other = f"{names[rank]} has another {what} than {names[0]}: {text}"
            raise ConfigurationError(f"{other}. Start all ranks with the same {what}.")


def settings_of(trainer: TrainerSurface, stage: str, module: Any, ckpt_path: Any) -> dict[str, str]:
    """Settings that all ranks must share: command, checkpoint and recipe."""
    common: dict[str, Any] = {
        "the command": stage,
        "ckpt_path": ckpt_path if ckpt_path in (None, "last", "best") else "a file",
        "trainer.profile": not isinstance(trainer.profiler, PassThroughProfiler),
    }
    return comparable(common | _recipe_of(trainer, module))


def data_of(data: FederatedDataModule) -> dict[str, str]:
    """Properties of the data that all ranks must share: the clients and, of data that all ranks hold, the samples."""
    common = {"the number of clients": repr(data.num_clients)}
    names, sizes = data.client_names(), () if data.pinned else data.client_sizes() or ()
    if are_many(data.num_clients):
        common["the names and sizes of the clients"] = _digest(repr((names, sizes)))
    else:
        common |= {f"the name of client {client}": repr(name) for client, name in enumerate(names)}
        common |= {f"the number of training samples of client {client}": repr(n) for client, n in enumerate(sizes)}
    if data.pinned:
        return common
    return common | comparable({f"data: {name}": value for name, value in data.describe().items()})


def layout_of(weights: Weights, module: Any) -> dict[str, str]:
    """Names and shapes of a module's weights."""
    tensors = {name: value for name, value in module.state_dict().items() if isinstance(value, torch.Tensor)}
    shapes = {f"the shape of {name}": list(value.shape) for name, value in tensors.items()}
    return comparable({"the number of weights": sum(v.numel() for v in weights.vectors.values()), **shapes})


def identity_of(trainer: TrainerSurface, module: Any, data: FederatedDataModule) -> dict[str, str]:
    """Settings that decide a run's result, for its checkpoints: recipe and arguments of the data.

    A run of the command line has all settings of model and data in its recipe; a run from Python the module's
    hyper-parameters, and the arguments that the data module keeps under their names.
    """
    every = _callbacks(trainer)
    shown = {
        name
        for name, callback in every.items()
        if (callback.only_shows if isinstance(callback, Callback) else only_watches(callback))
    }
    found = {name: value for name, value in _recipe_of(trainer, module).items() if name.partition(".")[0] not in shown}
    deciding = [type(callback).__name__ for name, callback in every.items() if name not in shown]
    found["trainer.callbacks"] = ", ".join(name for name in deciding if name != "ModelCheckpoint")
    if not data.pinned:
        found |= {f"data.{name}": value for name, value in data.describe().items() if name not in _SIZES}
    found |= arguments_of("data", data)
    for name, value in trainer.run_log.hyperparameters.items():
        if name.startswith(("model.", "data.")) and name.rpartition(".")[0] not in found:
            found.setdefault(name, value)
    found["data"] = type(data).__name__
    # what "auto" has become
    found |= {f"trainer.{name}": getattr(trainer.loop, name) for name in (*AUTOMATIC, "optimizer_state")}
    return {name: text for name, text in comparable(found).items() if name not in _CHANGES_NOTHING}


def check_fits(trainer: TrainerSurface, state: Mapping[str, Any], path: Path) -> None:
    """Refuse a checkpoint of another module or other clients, or with weights of another layout or not finite."""
    for what, before, now in (
        ("module", state["module"], class_path(trainer.module)),
        ("num_clients", state["num_clients"], trainer.num_clients),
        ("layout of weights", _layout(state["models"][0]), _layout(trainer.federation.models[0].state_dict())),
    ):
        if before != now:
            raise CheckpointError(f"{path}: its {what} is {before}, this run's is {now}: use the recipe of its run.")
    pairs = enumerate(zip(state["client_names"], trainer.client_names, strict=True))
    if renamed := {f"client {client}": names for client, names in pairs if names[0] != names[1]}:
        remedy = "Give the data of that run's clients, under the same names and in the same order."
        raise CheckpointError(f"{path} is of other clients: {_listed(renamed)}. {remedy}")
    for number, model in enumerate(state["models"]):
        if name := _not_finite(trainer, Weights.from_state_dict(model, torch.device("cpu"))):
            what = f"the weights of {name!r} in its model {number} are not finite"
            raise CheckpointError(f"{path}: {what}. Use another one of its folder, or lower the learning rate.")


def find_differences(
    trainer: TrainerSurface, state: Mapping[str, Any], path: Path, *, evaluates: bool
) -> dict[str, list[str]]:
    """Differences from the run of a checkpoint, after a warning: name -> value before and now. Called on every rank.

    Names that one of them lacks are not compared; checkpoints of old versions only know their seed. An evaluation is
    compared by what it depends on.
    """
    now = trainer.identity
    found = {
        name: [text, now[name]]
        for name, text in (state["recipe"] or {"trainer.seed": repr(state["seed"])}).items()
        if now.get(name, text) != text
        and not (evaluates and (not name.startswith(_OF_EVALUATIONS) or name in _OF_TRAINING))
    }
    found |= _other_data(trainer, state["data"])
    known = trainer.run_log.summary.get("differs_from_checkpoint", {})  # reported by the fit before this evaluation
    if new := {name: values for name, values in found.items() if name not in known}:
        keeps = "" if evaluates else ", but optimisers and schedulers that continue keep their rates"
        own = f"This run uses its own settings{keeps}; summary.json lists the differences as differs_from_checkpoint."
        rank_zero_warn(f"{path} is of a run that differs from this one: {_listed(new)}. {own}")
    return found


def _listed(differences: Mapping[str, Sequence[str]], words: str = "{name} was {0}, is {1}", most: int = 80) -> str:
    """The first differences, name -> two values of at most ``most`` characters, and the number of others."""
    shown = list(differences.items())[:_MOST_DIFFERENCES]
    parts = [words.format(*(cut(value, most) for value in values), name=name) for name, values in shown]
    more = len(differences) - len(shown)
    return f"{'; '.join(parts)}{f'; and {more} more' if more else ''}"


def _layout(model: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(vector.shape) for name, vector in model.items()}


def _not_finite(trainer: TrainerSurface, model: Weights) -> str | None:
    """The first parameter that is not finite, or buffer that is NaN: infinite buffers are masks."""
    if all(vector.isfinite().all() for _, vector in model.floating()):
        return None
    for span in trainer.loop.flat.spans():
        if span.dtype.is_floating_point:
            values = model.part(span)
            if values.isnan().any() or (span.trainable and values.isinf().any()):
                return span.name
    return None


def _other_data(trainer: TrainerSurface, before: Mapping[int, Mapping[str, str]]) -> dict[str, list[str]]:
    """Clients with other data than in the checkpoint; only that, and the number of samples, leaves a client's rank."""
    own = {}
    for client in trainer.processes.panel:
        old, new = before.get(client, {}), trainer.data_digests.get(client, {})
        changed = []
        for split, digest in new.items():
            if old.get(split, digest) != digest:
                was, count = old[split].partition(",")[0], digest.partition(",")[0]
                now = count if count != was else count.replace(" ", " other ", 1)
                changed.append((f"{was} ({split})", f"{now} ({split})"))
        if changed:
            own[client] = [", ".join(texts) for texts in zip(*changed, strict=True)]
    names = trainer.client_names
    return {f"the data of {names[client]}": found for client, found in trainer.processes.exchange(own).items()}


def _recipe_of(trainer: TrainerSurface, module: Any) -> dict[str, Any]:
    """Settings, strategy, callbacks and the module's hyper-parameters."""
    # Single ranks may have a display: it exchanges nothing.
    callbacks = {name: one for name, one in _callbacks(trainer).items() if type(one).__name__ != "ProgressDisplay"}
    shared = [one.name for one in fields(Settings) if one.metadata.get("shared", True)]
    common: dict[str, Any] = {
        "lightning-fl's version": __version__,
        **{f"trainer.{name}": getattr(trainer, name) for name in shared},
        "trainer.precision": trainer.fabric.strategy.precision.precision,
        "trainer.strategy": type(trainer.strategy).__name__,
        **arguments_of("trainer.strategy", trainer.strategy),
        "trainer.callbacks": ", ".join(type(callback).__name__ for callback in callbacks.values()),
        "model": type(module).__name__,
        **{f"model.{name}": value for name, value in dict(getattr(module, "hparams", {})).items()},
    }
    for name, callback in callbacks.items():
        common.update(arguments_of(name, callback))
    return common


def _callbacks(trainer: TrainerSurface) -> dict[str, Any]:
    return dict(trainer.named_callbacks([*trainer.callbacks, *trainer.lightning_callbacks]))


def arguments_of(owner: str, made: Any) -> dict[str, Any]:
    """Constructor arguments that an object keeps under their names."""
    names: set[str] = set()
    for kind in type(made).__mro__[:-1]:
        with suppress(TypeError, ValueError):  # a class that is not written in Python
            names.update(inspect.signature(kind).parameters)
    kept = vars(made)
    return {f"{owner}.{name}": kept[name] for name in sorted(names) if name in kept}


def comparable(values: Mapping[str, Any]) -> dict[str, str]:
    """The plain values as text, long ones cut and followed by their digest."""
    texts = {name: repr(value) for name, value in values.items() if name in _CLASSES or _is_plain(value)}
    for name, text in texts.items():
        if len(text) > _MOST_CHARACTERS:
            texts[name] = f"{text[:_MOST_CHARACTERS]}… (in all {_digest(text)[:8]})"
    return texts


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _is_plain(value: Any) -> bool:
    """Whether a value means the same on every machine: numbers and text, but no files."""
    if isinstance(value, str):
        return not (os.path.isabs(value) or value.startswith((".", "~")) or os.path.exists(value))
    if isinstance(value, Mapping):
        return all(_is_plain(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if is_dataclass(value):
        return all(_is_plain(getattr(value, part.name, None)) for part in fields(value))
    return value is None or isinstance(value, bool | int | float)
