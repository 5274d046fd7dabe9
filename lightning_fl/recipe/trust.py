"""Protection against recipes of others: without ``--trust`` they may name classes of this package only.

Instantiating a class that a recipe names runs its code.
"""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jsonargparse import _common, set_parsing_settings

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.system_errors import chain

_PACKAGE = "lightning_fl"


def refuse_foreign_classes(recipe: Any, place: str) -> None:
    """Refuse a recipe that names a class from outside this package, at any depth. Imports nothing."""
    for name in _foreign_classes(recipe):
        raise ConfigurationError(_refusal(place, name))


def predict_command(folder: Path, recipe: Mapping[str, Any], summary: Mapping[str, Any]) -> str | None:
    """The command that predicts with a finished run, with FILE for new samples; ``None`` if its model cannot.

    Relative paths are relative to the folder in which the run was started.
    """
    predicts = summary.get("predicts", "new samples")
    words = ["lightning-fl", "predict"]
    if predicts is None or not any(folder.glob("models/*.ckpt")):
        return None
    if predicts == "new samples":
        trust = ["--trust" for _ in _foreign_classes({key: recipe.get(key) for key in ("model", "data")})][:1]
        of_clients = "own layers" in summary.get("evaluated", "") and "exported" not in summary
        of_clients |= summary.get("num_models", 1) > 1
        return shlex.join([*words, str(folder), "FILE", *["--model", "best"] * of_clients, *trust])
    for name in ("best", "last"):
        if (checkpoint := folder / f"checkpoints/{name}.ckpt").is_file():
            return shlex.join([*words, "--config", str(folder / "config.yaml"), "--ckpt_path", str(checkpoint)])
    return None


@contextmanager
def own_classes_only(place: str) -> Iterator[None]:
    """Context in which the parser imports nothing from outside this package."""
    before = {name: _common.parsing_settings[name] for name in ("import_path_verdicts", "import_paths_enforced")}
    set_parsing_settings(import_path_denylist=["*"], import_path_allowlist=[_PACKAGE])
    try:
        yield
    except Exception as error:
        text = next((str(each) for each in chain(error) if "import path denylist" in str(each)), "")
        if denied := text.partition("Importing '")[2].partition("'")[0]:
            raise ConfigurationError(_refusal(place, denied)) from error
        raise
    finally:
        _common.parsing_settings.update(before)


def _foreign_classes(recipe: Any) -> Iterator[str]:
    return (name for name in _class_paths(recipe) if "." in name and name.partition(".")[0] != _PACKAGE)


def _class_paths(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(name := value.get("class_path"), str):
            yield name
        for part in value.values():
            yield from _class_paths(part)
    elif isinstance(value, list):
        for part in value:
            yield from _class_paths(part)


def _refusal(place: str, name: str) -> str:
    what = f"{place} names {name}, which is not part of lightning_fl; loading it would run its code"
    return f"{what}. Check the file and add --trust if you trust its author."
