"""Resolved recipe of a run: the file ``config.yaml`` and the hyperparameters for loggers."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_fl.callbacks.callback import Callback
from lightning_fl.files.atomic import write_whole
from lightning_fl.version import __version__

if TYPE_CHECKING:
    from lightning_fl.trainer.trainer import FederatedTrainer

__all__ = ["SaveConfig", "flat_hyperparameters"]


class SaveConfig(Callback):
    """Writes ``config.yaml`` into the run's folder before data are prepared; it can be given to ``--config``."""

    only_shows = True

    def __init__(self, text: str) -> None:
        self._text = text

    def setup(self, trainer: "FederatedTrainer", stage: str) -> None:
        """Write the file, unless an earlier stage of the same run did."""
        path = Path(trainer.log_dir) / "config.yaml"
        if not trainer.is_global_zero or path.exists():
            return
        write_whole(path, f"# lightning-fl {__version__}\n{self._text}")


def flat_hyperparameters(config: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Numbers and strings of a resolved recipe by their dotted path, for TensorBoard's table of runs.

    Paths leave out ``init_args``; classes in a list are named by their class: ``model``, ``model.encoder``,
    ``trainer.callbacks.LocalMixup.alpha``. Left out are null values and ``ckpt_path``.
    """
    flat: dict[str, bool | int | float | str] = {}
    for key, value in config.items():
        if key not in ("config", "ckpt_path"):
            _flatten(value, key, flat)
    return flat


def _flatten(value: object, path: str, flat: dict[str, bool | int | float | str]) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key == "class_path":
                flat[path] = str(item).rpartition(".")[2]
            else:
                _flatten(item, path if key == "init_args" else f"{path}.{key}", flat)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            named = isinstance(item, Mapping) and "class_path" in item
            _flatten(item, f"{path}.{item['class_path'].rpartition('.')[2] if named else number}", flat)
    elif isinstance(value, str):
        flat[path] = str(value)
    elif isinstance(value, bool | float):
        flat[path] = value
    elif isinstance(value, int):
        flat[path] = int(value)  # not a subclass, which loggers may not know
