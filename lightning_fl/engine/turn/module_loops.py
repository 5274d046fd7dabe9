"""Lightning's loops in a module's trainer: they tell where training is, and a module cannot run or change them."""

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.utilities.combined_loader import CombinedLoader

from lightning_fl.engine.turn.trainer_attributes import Refused, refusal, refuse_outside_of_a_turn

__all__ = ["restrict_loops"]

#: Place of a loop below ``self.trainer`` -> stage of its loader.
_WORDS = {
    "fit_loop": "train",
    "fit_loop.epoch_loop": "train",
    "fit_loop.epoch_loop.val_loop": "val",
    "validate_loop": "val",
    "test_loop": "test",
    "predict_loop": "predict",
}


class _DataSource:
    """``_data_source`` of a loop: the client's loader."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self.name = f"{loop._word}_dataloader"

    @property
    def instance(self) -> Any:
        return self._loop.trainer.datamodule

    def is_module(self) -> bool:
        """Whether loaders come from a data module."""
        return True

    def is_defined(self) -> bool:
        """Whether the client has data of this split and the run reads them."""
        return self._loop.trainer.reads(self._loop._word) and self.dataloader() is not None

    def dataloader(self) -> Any:
        """The client's loader."""
        return self._loop.trainer.loader(self._loop._word, f"{self.name}()")


class _ReadOnlyLoop(_Loop if TYPE_CHECKING else object):  # type: ignore[misc]
    """Mixin of Lightning's loops, which take their loaders and counts from the client's turn."""

    _path: str
    _word: str
    run: Any = Refused()

    @property
    def _combined_loader(self) -> CombinedLoader | None:
        loader: Any = self.trainer.loader_of(self._word)
        if loader is None or isinstance(loader, CombinedLoader):
            return loader
        return CombinedLoader(loader, "max_size_cycle" if self._word == "train" else "sequential")

    def setup_data(self) -> None:
        """Do nothing in a client's turn, whose loaders exist."""
        if self.trainer.client is None:
            refuse_outside_of_a_turn(f"{self._path}.setup_data()")

    @property
    def max_batches(self) -> Any:
        return self.trainer.batches_of(self._word)

    _max_batches = max_batches

    @property
    def global_step(self) -> int:
        return self.trainer.global_step

    _batches_that_stepped = global_step

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(refusal(f"{self._path}.{name}"))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{refusal(f'{self._path}.{name}')} It cannot be set.")


_kinds: dict[type, type] = {}


def restrict_loops(trainer: Any) -> None:
    """Make the loops of a new trainer read-only, with the client's loaders and counts."""
    find: Callable[[Any], Any]
    for path, word in _WORDS.items():
        find = attrgetter(path)
        loop = find(trainer)
        kind = type(loop)
        vars(loop).update(_path=path, _word=word)
        vars(loop)["_data_source"] = _DataSource(loop)
        if kind not in _kinds:
            _kinds[kind] = type(kind.__name__, (_ReadOnlyLoop, kind), {})
        loop.__class__ = _kinds[kind]
