"""Inside the runs of ``lightning-fl advise``. Imports torch."""

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from importlib import import_module
from typing import Any

from lightning import seed_everything
from lightning.pytorch import LightningModule

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.errors import FederatedError
from lightning_fl.core.metrics import ClientMetrics, default_metric
from lightning_fl.data.loaders import every_other_sample
from lightning_fl.data.module import Split
from lightning_fl.recipe.error_messages import error_text
from lightning_fl.recipe.file import class_name
from lightning_fl.study.cells import Cell
from lightning_fl.trainer.federate import federate
from lightning_fl.trainer.trainer import FederatedTrainer

#: Most clients whose collaboration is recorded.
_MOST_CLIENTS = 100


class AdviceRecord(Callback):
    """Keeps half of each client's validation data back, validates the tested models on it, and records who uses whose.

    Training sees the other half only: it stops runs and chooses rounds, epochs and collaborators. On the same samples
    ways that choose more would look better.
    """

    def setup(self, trainer: FederatedTrainer, stage: str) -> None:
        data, whole, self._half = trainer.datamodule, type(trainer.datamodule).client_data, 0

        def client_data(client: int, split: Split) -> Any:
            found = whole(data, client, split)
            return every_other_sample(found, first=self._half) if split == "val" else found

        data.client_data = client_data  # type: ignore[method-assign]

    def on_evaluate_end(self, trainer: FederatedTrainer, split: Split, metrics: ClientMetrics) -> None:
        record = trainer.run_log.summary
        if split == "test":
            self._half = 1
            trainer.evaluate_split("val")
            if trainer.num_clients <= _MOST_CLIENTS:
                record["collaboration"] = trainer.federation.collaboration.matrix.tolist()
        elif (name := default_metric(metrics)) is not None:
            record["monitor"] = {"name": name, "mode": "max" if metrics[name].higher_is_better else "min"}


def make_callbacks(entries: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Callbacks from the entries of a recipe."""
    packages = [import_module(name) for name in ("lightning_fl.callbacks", "lightning.pytorch.callbacks", __name__)]
    kinds = [next(getattr(one, name) for one in packages if name in dir(one)) for name in map(class_name, entries)]
    return [kind(**entry.get("init_args", {})) for kind, entry in zip(kinds, entries, strict=True)]


class ThisProcess:
    """A :class:`~lightning_fl.study.workers.Runner` that trains a module here, one cell after another.

    ``arguments`` are those of :func:`.federate`.
    """

    num_workers = 1

    def __init__(self, module: LightningModule, data: Any, arguments: Mapping[str, Any]) -> None:
        self._module, self._data, self._arguments = module, data, arguments

    def start(self, cell: Cell) -> tuple[Cell, int]:
        own = {key.removeprefix("trainer."): value for layer in cell.layers for key, value in layer.items()}
        own |= {"callbacks": make_callbacks(own["callbacks"]), "default_root_dir": str(cell.folder), "seed": cell.seed}
        own |= {"enable_progress_bar": False, "ckpt_path": "last" if cell.resumable() else None}
        seed_everything(cell.seed, verbose=False)
        try:
            federate(*deepcopy((self._module, self._data)), **{**self._arguments, **own})
        except FederatedError as error:
            cell.log.write_text(f"error: {error_text(error)}\n", encoding="utf-8")
            return cell, 2
        return cell, 0

    def ended(self, jobs: Collection[tuple[Cell, int]]) -> dict[tuple[Cell, int], int]:
        return {job: job[1] for job in jobs}

    def ask_to_stop(self, jobs: Collection[tuple[Cell, int]]) -> None:
        """Nothing runs while it is asked."""

    kill = close = ask_to_stop
