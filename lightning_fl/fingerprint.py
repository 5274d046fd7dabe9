"""What all ranks of a run must have in common, compared before anything is trained.

Ranks that were started with different recipes, or whose machines hold different data, would wait for each other in
different places, or average what does not belong together.
"""

import hashlib
import inspect
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning.pytorch.profilers import PassThroughProfiler

from lightning_fl.data.module import FederatedDataModule
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.errors import ConfigurationError
from lightning_fl.strategies.federated import FederatedStrategy
from lightning_fl.surface import TrainerSurface
from lightning_fl.version import __version__

__all__ = ["check_same", "data_of", "layout_of", "settings_of"]

#: Settings by which ranks may differ: where they write, and how many threads they have.
_OF_A_RANK = ("default_root_dir", "num_threads")
#: Callbacks that ranks may have or not: they show and keep what happens.
_OWN_CALLBACKS = ("ProgressDisplay", "SaveConfig")
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
    of_ranks = strategy.exchange({strategy.global_rank: dict(own)})
    first, names = of_ranks[0], strategy.rank_names
    for rank, found in of_ranks.items():
        different = [name for name in first if name in found and found[name] != first[name]]
        if not different:
            continue
        listed = [f"{name} is {found[name]} there, {first[name]} here" for name in different[:_MOST_DIFFERENCES]]
        more = len(different) - len(listed)
        raise ConfigurationError(
            f"{names[rank]} comes with another {what} than {names[0]}: {'; '.join(listed)}"
            f"{f'; and {more} more' if more else ''}. Start all ranks with the same {what}."
        )


def settings_of(trainer: TrainerSurface, stage: str, module: Any, ckpt_path: Any) -> dict[str, str]:
    """What of a run's recipe must be the same: settings, strategy, callbacks and the module's hyper-parameters.

    Args:
        trainer: of the run.
        stage: "fit", "validate", "test" or "predict".
        module: the user's.
        ckpt_path: what the run goes on from.
    """
    callbacks = [callback for callback in trainer.callbacks if type(callback).__name__ not in _OWN_CALLBACKS]
    common: dict[str, Any] = {
        "lightning-fl's version": __version__,
        "the command": stage,
        "ckpt_path": ckpt_path if ckpt_path in (None, "last", "best") else "a file",
        **{f"trainer.{name}": value for name, value in asdict(trainer.settings).items() if name not in _OF_A_RANK},
        "trainer.precision": trainer.fabric._precision.precision,
        "trainer.profile": not isinstance(trainer.profiler, PassThroughProfiler),
        "trainer.strategy": type(trainer.strategy).__name__,
        **_arguments("trainer.strategy", trainer.strategy),
        "trainer.callbacks": ", ".join(type(callback).__name__ for callback in callbacks),
        "model": type(module).__name__,
        **{f"model.{name}": value for name, value in dict(getattr(module, "hparams", {})).items()},
    }
    for callback in callbacks:
        common.update(_arguments(type(callback).__name__, callback))
    return dict(_comparable(common))


def data_of(data: FederatedDataModule) -> dict[str, str]:
    """What of the data must be the same: who the clients are and, of data that all ranks hold, what they are."""
    common: dict[str, Any] = {"the number of clients": data.num_clients}
    common |= {f"the name of client {client}": name for client, name in enumerate(data.client_names())}
    if not data.pinned:
        sizes = data.client_sizes() or ()
        common |= {f"the number of training samples of client {client}": size for client, size in enumerate(sizes)}
        common |= {f"data: {name}": value for name, value in data.describe().items()}
    return dict(_comparable(common))


def layout_of(weights: Weights, module: Any) -> dict[str, str]:
    """What of a module's weights must be the same: names and shapes."""
    common: dict[str, Any] = {
        "the number of weights": sum(vector.numel() for vector in weights.vectors.values()),
        **{f"the shape of {name}": list(value.shape) for name, value in module.state_dict().items()},
    }
    return dict(_comparable(common))


def _arguments(owner: str, made: Any) -> dict[str, Any]:
    """The arguments that an object was made with, as far as it keeps them under their names."""
    names: set[str] = set()
    for kind in type(made).__mro__[:-1]:
        with suppress(TypeError, ValueError):  # of a class that is not written in Python
            names.update(inspect.signature(kind).parameters)
    kept = vars(made)
    return {f"{owner}.{name}": kept[name] for name in sorted(names) if name in kept}


def _comparable(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if _is_plain(value):
            text = repr(value)
            if len(text) > _MOST_CHARACTERS:
                digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
                text = f"{text[:_MOST_CHARACTERS]}… (in all {digest[:8]})"
            yield name, text


def _is_plain(value: Any) -> bool:
    """Whether a value says the same on every machine: numbers and words, but no files."""
    if isinstance(value, str):
        return not (os.path.isabs(value) or value.startswith((".", "~")) or _exists(value))
    if isinstance(value, Mapping):
        return all(_is_plain(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float)


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False
