"""Parser of recipes.

Recipes follow the conventions of LightningCLI: ``seed_everything``, ``trainer``, ``model``, ``data`` and
``ckpt_path``; classes by ``class_path`` and ``init_args``, with short names for those of this package. Of several
``--config`` the later one has priority, and single options have priority over all of them, in any order. An empty
section of a recipe (``trainer:`` and nothing below) changes nothing.
"""

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Annotated, Any, get_args

import yaml
from annotated_types import Interval
from jsonargparse import ActionConfigFile, ArgumentError, ArgumentParser, Namespace, set_dumper, set_loader

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.files.yaml import dump_yaml, parse_yaml
from lightning_fl.recipe.classes import annotations_of
from lightning_fl.recipe.error_messages import compact, federated_cause
from lightning_fl.recipe.faults import find_faults
from lightning_fl.recipe.help import CommandParser
from lightning_fl.recipe.settings import Keys, collect_settings

#: The first line of the help; a list of all keys would be a page.
USAGE = "%(prog)s --config RECIPE [--config OVERRIDES ...] [--KEY VALUE ...]"

#: Seeds that NumPy accepts.
Seed = Annotated[int, Interval(ge=0, le=2**32 - 1)]

_MODE = "lightning-fl"
set_loader(_MODE, partial(parse_yaml, mark_quoted=True), (yaml.YAMLError,))
set_dumper(_MODE, dump_yaml)


def add_arguments(parser: ArgumentParser, command: str, *, own_modules: bool = True) -> None:
    """Add the keys of a recipe; ``own_modules`` allows modules of the working directory. Imports torch."""
    parser.parser_mode = _MODE
    if own_modules and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    _import_short_names()
    from lightning_fl.core.lightning_types import AnyModule
    from lightning_fl.data.module import FederatedDataModule
    from lightning_fl.trainer.trainer import FederatedTrainer

    about = "A recipe: a file, or the name of a shipped one. Can be repeated."
    parser.add_argument("--config", action=ActionConfigFile, help=about)
    parser.add_argument("--seed_everything", type=Seed, default=0, help="Seed of everything that is random.")
    parser.add_class_arguments(FederatedTrainer, "trainer", fail_untyped=False)
    parser.add_subclass_arguments(get_args(AnyModule), "model", required=True, fail_untyped=False)
    parser.add_subclass_arguments(FederatedDataModule, "data", required=True, fail_untyped=False)
    if command == "fit":
        parser.add_argument("--ckpt_path", type=str | None, default=None, help="Resume from last, best or a file.")
    else:
        parser.add_argument("--ckpt_path", type=str, required=True, help="last, best or a file.")


def make_parser(command: str, *, own_modules: bool = True) -> ArgumentParser:
    """Make the parser of a command that takes a recipe, see :func:`add_arguments`. Imports torch."""
    parser = CommandParser(command, usage=USAGE)
    add_arguments(parser, command, own_modules=own_modules)
    return parser


def parse(command: str, parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    """Parse the words after a command: merge them with their recipes, find all faults, then resolve the rest.

    Raises:
        ConfigurationError: all faults, one a line.
        ArgumentError: the parser's, caused by an error of this package.
    """
    options = _options(words)
    for name, text in options:
        if name == "help" or name.endswith(".help"):
            parser.parse_args([f"--{name}", text] if text else [f"--{name}"])  # prints it and exits
    prints = [text for name, text in options if name == "print_config"]
    if prints:
        (action,) = (one for one in parser._actions if "--print_config" in one.option_strings)
        action(parser, Namespace(), prints)  # the parser prints what it has parsed and exits
    keys = _keys(parser)
    tree = with_strategy_class(collect_settings([one for one in options if one[0] != "print_config"], keys))
    if faults := find_faults(tree, keys) or ([] if prints else _missing(command, tree)):
        raise ConfigurationError("\n".join(faults))
    try:
        return parser.parse_object(tree)
    except ArgumentError as error:
        if federated_cause(error) is not None:
            raise
        raise ConfigurationError(compact(str(error))) from error


def _options(words: Sequence[str]) -> list[tuple[str, str]]:
    """The words of a command line as pairs of an option's name and its text."""
    options = []
    rest = ["--help" if word == "-h" else word for word in reversed(words)]
    while rest:
        name, has_value, text = rest.pop().partition("=")
        if not name.startswith("--"):
            given = f"{name}{has_value}{text}"
            raise ConfigurationError(f"unrecognized argument: {given}. Options begin with --, as in --config RECIPE.")
        name = name.removeprefix("--")
        if not has_value and name not in ("print_config", "help"):
            if rest and not rest[-1].startswith("--"):
                text = rest.pop()
            elif not name.endswith(".help"):
                hint = "a recipe's file, or the name of a shipped one (`lightning-fl recipes`)"
                raise ConfigurationError(f"--{name} has no value; give {hint if name == 'config' else 'one'}.")
        options.append((name, text))
    return options


def class_bases() -> dict[str, list[type]]:
    """The keys that hold a class, with its base classes, see :class:`Keys`. Imports torch."""
    from lightning.fabric.loggers.logger import Logger
    from lightning.pytorch import Callback as LightningCallback
    from lightning.pytorch import LightningDataModule, LightningModule
    from torch.utils.data import DataLoader, Dataset

    from lightning_fl.callbacks import BiddingPolicy, Callback
    from lightning_fl.data import Division, FederatedDataModule, Partitioner
    from lightning_fl.strategies import FederatedStrategy

    return {
        "model": [LightningModule],
        "data": [FederatedDataModule],
        "data.partitioner": [Partitioner],
        "data.division": [Division],
        "data.datamodules": [Dataset, DataLoader, LightningDataModule],
        "trainer.callbacks": [LightningCallback, Callback],
        "trainer.callbacks.policy": [BiddingPolicy],
        "trainer.callbacks.policies": [BiddingPolicy],
        "trainer.strategy": [FederatedStrategy],
        "trainer.logger": [Logger],
    }


def _keys(parser: ArgumentParser) -> Keys:
    from lightning_fl.trainer.trainer import FederatedTrainer

    annotations = {f"trainer.{name}": one for name, one in annotations_of(FederatedTrainer).items()}
    names = [name for name in parser.get_defaults(skip_validation=True).keys(branches=False) if name != "config"]
    return Keys(names, class_bases(), annotations | {"seed_everything": Seed})


def with_strategy_class(settings: dict[str, Any]) -> dict[str, Any]:
    """Replace a registered name as the strategy's ``class_path`` by its import path and the arguments it implies.

    Arguments without a class are those of ``fedavg``.
    """
    from lightning_fl.trainer.arguments import registered_strategy

    trainer = settings.get("trainer")
    entry = trainer.get("strategy") if isinstance(trainer, Mapping) else None
    given = (entry.get("init_args") or {}) if isinstance(entry, Mapping) else None
    if not isinstance(trainer, Mapping) or not isinstance(entry, Mapping) or not isinstance(given, Mapping):
        return settings
    found = registered_strategy(entry.get("class_path", "fedavg"))
    if found is None:
        return settings
    kind, implied = found
    strategy = {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": {**implied, **given}}
    return {**settings, "trainer": {**trainer, "strategy": strategy}}


def _missing(command: str, tree: dict[str, object]) -> list[str]:
    if missing := [key for key in ("model", "data") if not tree.get(key)]:
        return [
            f"{' and '.join(missing)} not given; name a recipe with --config (`lightning-fl recipes` lists the shipped"
            " ones), or give the classes with --model and --data."
        ]
    if command != "fit" and not tree.get("ckpt_path"):
        return [f"ckpt_path not given; add --ckpt_path with last, best or a file to lightning-fl {command}."]
    return []


def _import_short_names() -> None:
    with warnings.catch_warnings():
        # Warnings of dependencies about each other, which users cannot act on.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        for name in ("callbacks", "data", "models", "strategies"):
            package = import_module(f"lightning_fl.{name}")
            for exported in package.__all__:
                getattr(package, exported)
    # Those of PyG, which is imported when a class that needs it is instantiated.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.jit\.")
