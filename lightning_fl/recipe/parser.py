"""The parser of recipes, and what is wrong with one in words.

Recipes follow the conventions of LightningCLI: ``seed_everything``, ``trainer``, ``model``, ``data`` and
``ckpt_path``; classes by ``class_path`` and ``init_args``, with the short name for those of this package; several
``--config``, the later over the earlier, and single values on the command line over them, wherever they stand.
"""

import atexit
import gc
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, get_args

import yaml
from jsonargparse import ActionConfigFile, ArgumentError, ArgumentParser, Namespace, Path, set_dumper, set_loader
from jsonargparse.typing import restricted_number_type

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.files.yaml import dump_yaml, parse_yaml
from lightning_fl.recipe.error_messages import compact, federated_cause, shown
from lightning_fl.recipe.faults import find_faults
from lightning_fl.recipe.file import load_recipe
from lightning_fl.recipe.help import ClassHelpFormatter
from lightning_fl.recipe.quoted import mark_quoted
from lightning_fl.recipe.settings import collect_settings, ordered_options
from lightning_fl.recipe.shipped import find_recipe
from lightning_fl.recipe.strategy_names import with_strategy_class, with_strategy_class_before_its_arguments

__all__ = ["USAGE", "add_arguments", "make_parser", "parse"]

#: The first line of the help; a list of all keys would be a page.
USAGE = "%(prog)s --config RECIPE [--config OVERRIDES ...] [--KEY VALUE ...]"

Seed = restricted_number_type("Seed", int, [(">=", 0), ("<=", 2**32 - 1)], docstring="What NumPy takes as a seed.")


#: The parser's own reader of files and values goes by this name.
_MODE = "lightning-fl"


def _parse_value(text: str) -> Any:
    """What a text means to the parser; ``name:`` and ``{a, b}`` alone are texts, no mappings without values."""
    value = parse_yaml(text)
    if isinstance(value, dict) and value and all(item is None for item in value.values()):
        words = set(text.strip(" {}").replace(" ", "").split(","))
        if words == set(value) or [text.strip()] == [f"{key}:" for key in value]:
            return text
    return mark_quoted(value)


set_loader(_MODE, _parse_value, (yaml.YAMLError,))
set_dumper(_MODE, dump_yaml)


class _RecipeFile(ActionConfigFile):
    """``--config``: a file, or the name of a shipped recipe."""

    def __call__(self, parser: ArgumentParser, cfg: Namespace, values: str, option_string: str | None = None) -> None:
        path = find_recipe(values)
        text = dump_yaml(with_strategy_class(load_recipe(path)))  # read in our way, whatever the file's encoding
        file = Path(os.fspath(path), mode="fr")
        with file.relative_path_context():
            super().__call__(parser, cfg, text, option_string)
        cfg[self.dest][-1] = file


def add_arguments(parser: ArgumentParser, command: str, *, own_modules: bool = True) -> None:
    """Add the keys of a recipe. Imports torch.

    Args:
        parser: gets them.
        command: a command that takes a recipe.
        own_modules: also look for modules that the recipe names in the working directory.
    """
    parser.parser_mode = _MODE
    parser.formatter_class = ClassHelpFormatter
    if own_modules and os.getcwd() not in sys.path:  # beside the recipe; `python -m` looks there too
        sys.path.append(os.getcwd())
    _import_short_names()
    from lightning_fl.core.lightning_types import AnyModule
    from lightning_fl.data.module import FederatedDataModule
    from lightning_fl.trainer.trainer import FederatedTrainer

    parser.add_argument(
        "--config", action=_RecipeFile, help="A recipe: a file, or the name of a shipped one. May be given repeatedly."
    )
    parser.add_argument("--seed_everything", type=Seed, default=0, help="Seed of everything that is random.")
    parser.add_class_arguments(FederatedTrainer, "trainer", fail_untyped=False)
    parser.add_subclass_arguments(get_args(AnyModule), "model", required=True, fail_untyped=False)
    parser.add_subclass_arguments(FederatedDataModule, "data", required=True, fail_untyped=False)
    if command == "fit":
        parser.add_argument("--ckpt_path", type=str | None, default=None, help="Go on from last, best or a file.")
    else:
        parser.add_argument("--ckpt_path", type=str, required=True, help="last, best or a file.")


def make_parser(command: str, *, own_modules: bool = True) -> ArgumentParser:
    """The parser of a command that takes a recipe, with the arguments of :func:`add_arguments`. Imports torch."""
    parser = ArgumentParser(prog=f"lightning-fl {command}", usage=USAGE, exit_on_error=False, allow_abbrev=False)
    add_arguments(parser, command, own_modules=own_modules)
    return parser


def parse(command: str, parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    """Parse the words after a command.

    Raises:
        ConfigurationError: all that is wrong, one fault a line.
        ArgumentError: the parser's, where the reason lies in an error of ours.
    """
    words = with_strategy_class_before_its_arguments(ordered_options(words))
    try:
        config = parser.parse_args(words)
        if not isinstance(config.trainer, Namespace):
            raise ConfigurationError(
                f"trainer={shown(config.trainer)}: expected a mapping with keys such as max_rounds, callbacks."
            )
        return config
    except Exception as error:
        if federated_cause(error) is not None:
            raise
        faults = _faults(command, parser, words)
        if not faults and not isinstance(error, ArgumentError):
            raise
        raise ConfigurationError("\n".join(faults) or compact(str(error))) from error


def _import_short_names() -> None:
    """Import what recipes may name without its module: a class is known by its short name once it is imported."""
    # Imports make a million objects and next to no garbage: a fifth of their time would go into looking for it.
    with warnings.catch_warnings(), _collector_at_rest():
        # Dependencies warn of what they import from each other; no user of ours can mend that.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        for name in ("callbacks", "data", "models", "strategies"):
            package = import_module(f"lightning_fl.{name}")
            for exported in package.__all__:
                getattr(package, exported)
    # The same of PyG, which is imported when a recipe's class that needs it is made.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.jit\.")


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Without garbage collection; what is imported meanwhile, later collections pass by."""
    if "torch" in sys.modules or not gc.isenabled():  # imported already, and this process may be somebody's notebook
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # libraries complain of instances that are left when Python ends
        gc.enable()


def _faults(command: str, parser: ArgumentParser, arguments: Sequence[str]) -> list[str]:
    """What is wrong with the settings: all that can be told apart."""
    from lightning.fabric.loggers.logger import Logger
    from lightning.pytorch import LightningModule

    from lightning_fl.callbacks import BiddingPolicy, Callback
    from lightning_fl.data import FederatedDataModule, Partitioner
    from lightning_fl.strategies import FederatedStrategy

    settings = with_strategy_class(collect_settings(arguments))
    keys = [*parser.get_defaults(skip_validation=True).keys(branches=False), "config", "print_config", "help"]
    bases = {
        "model": LightningModule,
        "data": FederatedDataModule,
        "data.init_args.partitioner": Partitioner,
        "trainer.callbacks": Callback,
        "trainer.callbacks.init_args.policy": BiddingPolicy,
        "trainer.callbacks.init_args.policies": BiddingPolicy,
        "trainer.strategy": FederatedStrategy,
        "trainer.logger": Logger,
    }
    faults = find_faults(settings, keys, bases)
    missing = [key for key in ("model", "data") if not settings.get(key)]
    if missing and not faults:
        faults.append(
            f"{' and '.join(missing)} not given: name a recipe with --config (`lightning-fl recipes` lists the shipped"
            " ones), or give the classes with --model and --data."
        )
    if command != "fit" and not settings.get("ckpt_path"):
        faults.append(f"ckpt_path not given: add --ckpt_path with last, best or a file, for lightning-fl {command}.")
    return faults
