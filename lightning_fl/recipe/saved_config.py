"""Callback that saves the resolved recipe of a run."""

from pathlib import Path
from typing import TYPE_CHECKING

from lightning_fl.callbacks.callback import Callback
from lightning_fl.files.atomic import write_whole
from lightning_fl.version import __version__

if TYPE_CHECKING:
    from lightning_fl.trainer.trainer import FederatedTrainer


class SaveConfig(Callback):
    """Writes ``config.yaml`` into the run's folder before data are prepared; it can be given to ``--config``."""

    only_shows = True

    def __init__(self, text: str) -> None:
        self._text = text

    def setup(self, trainer: "FederatedTrainer", stage: str) -> None:
        """Write the file, unless an earlier stage of the same run did."""
        path = Path(trainer.log_dir) / "config.yaml"
        if trainer.is_global_zero and not path.exists():
            write_whole(path, f"# lightning-fl {__version__}\n{self._text}")
