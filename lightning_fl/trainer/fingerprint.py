"""Identity of a run as text: compared between its ranks, and with a checkpoint.

Ranks started with different recipes or data would wait for each other in different places, or average models that do
not belong together. A run that resumes from a checkpoint of another recipe or other data warns of the differences.
"""

import hashlib
import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any

from lightning.pytorch.profilers import PassThroughProfiler

from lightning_fl.core.errors import ConfigurationError, cut
from lightning_fl.data.module import FederatedDataModule
from lightning_fl.engine.settings import Settings
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.runtime.surface import TrainerSurface
from lightning_fl.strategies.federated import FederatedStrategy
from lightning_fl.version import __version__

__all__ = ["check_same", "data_of", "differences", "identity_of", "layout_of", "listed", "settings_of"]

#: Callbacks that single ranks may have: they only show and save.
_OWN_CALLBACKS = ("ProgressDisplay", "SaveConfig")
#: Arguments that do not change any model: length of the run, what is shown and saved.
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
    """Refuse ranks that differ. Called on every rank.

    Args:
        strategy: of the run.
        own: name -> value of this rank. What a rank leaves out is not compared.
        what: these things are called.

    Raises:
        ConfigurationError: naming what differs, on which rank; the same on all ranks.
    """
    digest = hashlib.sha256(repr(sorted(own.items())).encode(errors="surrogatepass")).hexdigest()
    if len(set(strategy.exchange({strategy.global_rank: digest}).values())) == 1:
        return
    of_ranks = strategy.exchange({strategy.global_rank: dict(own)})
    first, names = of_ranks[0], strategy.rank_names
    for rank, found in of_ranks.items():
        different = [name for name in first if name in found and found[name] != first[name]]
        if not different:
            continue
        text = listed({name: (found[name], first[name]) for name in different})
        raise ConfigurationError(
            f"{names[rank]} has another {what} than {names[0]}: {text}. Start all ranks with the same {what}."
        )


def settings_of(trainer: TrainerSurface, stage: str, module: Any, ckpt_path: Any) -> dict[str, str]:
    """Properties of a run that all ranks must share: recipe, command and checkpoint.

    Args:
        trainer: of the run.
        stage: "fit", "validate", "test" or "predict".
        module: the user's.
        ckpt_path: checkpoint of the run.
    """
    common: dict[str, Any] = {
        "the command": stage,
        "ckpt_path": ckpt_path if ckpt_path in (None, "last", "best") else "a file",
        "trainer.profile": not isinstance(trainer.profiler, PassThroughProfiler),
        **_recipe_of(trainer, module),
    }
    return dict(_comparable(common))


def identity_of(trainer: TrainerSurface, module: Any, data: FederatedDataModule) -> dict[str, str]:
    """Properties that decide a run's result, for its checkpoints: the recipe and the arguments of the data.

    A run of the command line has all settings of model and data in its recipe; a run from Python the module's
    hyper-parameters, and the arguments that the data module keeps under their names.

    Args:
        trainer: of the run.
        module: the user's.
        data: set up.
    """
    shown = {name for name, callback in trainer.named_callbacks() if callback.only_shows}
    found = {
        name: value
        for name, value in _recipe_of(trainer, module).items()
        if name not in _CHANGES_NOTHING and name.partition(".")[0] not in shown
    }
    deciding = [type(callback).__name__ for callback in trainer.callbacks if not callback.only_shows]
    found["trainer.callbacks"] = ", ".join(name for name in deciding if name != "ModelCheckpoint")
    if not data.pinned:
        found |= {f"data.{name}": value for name, value in data.describe().items() if name not in _SIZES}
    found |= _arguments("data", data)
    for name, value in trainer.run_log.hyperparameters.items():
        if name.startswith(("model.", "data.")) and name.rpartition(".")[0] not in found:
            found.setdefault(name, value)
    found["data"] = type(data).__name__
    return {name: text for name, text in _comparable(found) if name not in _CHANGES_NOTHING}


def differences(before: Mapping[str, str], now: Mapping[str, str], *, evaluates: bool) -> dict[str, tuple[str, str]]:
    """Differences between two identities: name -> the value before and now. Names that one lacks are not compared.

    Args:
        before: :func:`identity_of` of the run that a checkpoint is of.
        now: of this one.
        evaluates: only what an evaluation depends on is compared.
    """
    return {
        name: (text, now[name])
        for name, text in before.items()
        if name in now and now[name] != text and not (evaluates and _only_trains(name))
    }


def listed(
    differences: Mapping[str, Sequence[str]], words: str = "{name} is {before} there, {now} here", most: int = 300
) -> str:
    """Text of the first differences, and the number of the others.

    Args:
        differences: name -> the value before and now.
        words: for one of them.
        most: characters of a value.
    """
    shown = list(differences.items())[:_MOST_DIFFERENCES]
    parts = [words.format(name=name, before=cut(before, most), now=cut(now, most)) for name, (before, now) in shown]
    more = len(differences) - len(shown)
    return f"{'; '.join(parts)}{f'; and {more} more' if more else ''}"


def _only_trains(name: str) -> bool:
    """Whether a difference has no effect on an evaluation."""
    return not name.startswith(_OF_EVALUATIONS) or name in _OF_TRAINING


def _recipe_of(trainer: TrainerSurface, module: Any) -> dict[str, Any]:
    """Settings, strategy, callbacks and the module's hyper-parameters."""
    callbacks = {name: one for name, one in trainer.named_callbacks() if type(one).__name__ not in _OWN_CALLBACKS}
    common: dict[str, Any] = {
        "lightning-fl's version": __version__,
        **{
            f"trainer.{one.name}": getattr(trainer, one.name)
            for one in fields(Settings)
            if one.metadata.get("shared", True)
        },
        "trainer.precision": trainer.fabric._precision.precision,
        "trainer.strategy": type(trainer.strategy).__name__,
        **_arguments("trainer.strategy", trainer.strategy),
        "trainer.callbacks": ", ".join(type(callback).__name__ for callback in callbacks.values()),
        "model": type(module).__name__,
        **{f"model.{name}": value for name, value in dict(getattr(module, "hparams", {})).items()},
    }
    for name, callback in callbacks.items():
        common.update(_arguments(name, callback))
    return common


def data_of(data: FederatedDataModule) -> dict[str, str]:
    """Properties of the data that all ranks must share: the clients and, of data that all ranks hold, the samples."""
    common = {"the number of clients": repr(data.num_clients)}
    common |= {f"the name of client {client}": repr(name) for client, name in enumerate(data.client_names())}
    if data.pinned:
        return common
    sizes = data.client_sizes() or ()
    common |= {f"the number of training samples of client {client}": repr(size) for client, size in enumerate(sizes)}
    return common | dict(_comparable({f"data: {name}": value for name, value in data.describe().items()}))


def layout_of(weights: Weights, module: Any) -> dict[str, str]:
    """Names and shapes of a module's weights."""
    common: dict[str, Any] = {
        "the number of weights": sum(vector.numel() for vector in weights.vectors.values()),
        **{f"the shape of {name}": list(value.shape) for name, value in module.state_dict().items()},
    }
    return dict(_comparable(common))


def _arguments(owner: str, made: Any) -> dict[str, Any]:
    """Constructor arguments that an object keeps under their names."""
    names: set[str] = set()
    for kind in type(made).__mro__[:-1]:
        with suppress(TypeError, ValueError):  # of a class that is not written in Python
            names.update(inspect.signature(kind).parameters)
    kept = vars(made)
    return {f"{owner}.{name}": kept[name] for name in sorted(names) if name in kept}


def _comparable(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if name in _CLASSES or _is_plain(value):
            text = repr(value)
            if len(text) > _MOST_CHARACTERS:
                digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
                text = f"{text[:_MOST_CHARACTERS]}… (in all {digest[:8]})"
            yield name, text


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
