"""``self.trainer.fit_loop`` and the other loops, as far as modules read where training is."""

from typing import Any, NoReturn

from lightning.pytorch.loops.progress import _BatchProgress, _ProcessedTracker, _Progress
from lightning.pytorch.utilities.combined_loader import CombinedLoader

from lightning_fl.data.module import Split
from lightning_fl.engine.turn.trainer_attributes import refusal, refuse_outside_of_a_turn

__all__ = ["EvaluationLoop", "FitLoop"]


class _DataSource:
    """Where a client's loader of a split comes from."""

    def __init__(self, trainer: Any, split: Split, name: str) -> None:
        self._trainer = trainer
        self._split: Split = split
        self.name = name

    @property
    def instance(self) -> Any:
        return self._trainer.datamodule

    def is_module(self) -> bool:
        """Loaders are the data module's."""
        return True

    def is_defined(self) -> bool:
        """Whether the client has data of this split and the run reads them."""
        return self._trainer.uses(self._split) and self.dataloader() is not None

    def dataloader(self) -> Any:
        """The client's loader."""
        return self._trainer.loader(self._split, f"{self.name}()")


class _Loop:
    """What Lightning's loops have in common; to be read only."""

    trainer: Any
    _path: str
    _split: Split
    _data_source: _DataSource
    restarting = False
    is_resuming = False
    skip = False

    def __init__(self, trainer: Any, path: str, split: Split, hook: str) -> None:
        vars(self).update(trainer=trainer, _path=path, _split=split, _data_source=_DataSource(trainer, split, hook))

    @property
    def _results(self) -> Any:
        return self.trainer._results

    @property
    def _loader(self) -> Any:
        raise NotImplementedError

    @property
    def _combined_loader(self) -> CombinedLoader | None:
        loader = self._loader
        if loader is None or isinstance(loader, CombinedLoader):
            return loader
        return CombinedLoader(loader, "max_size_cycle" if self._split == "train" else "sequential")

    def setup_data(self) -> None:
        """Make the loaders, which in a client's turn are there already."""
        if self.trainer.client is None:
            refuse_outside_of_a_turn(f"{self._path}.setup_data()")

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(refusal(f"{vars(self).get('_path', 'fit_loop')}.{name}"))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{refusal(f'{self._path}.{name}')} It cannot be set.")


class EvaluationLoop(_Loop):
    """``validate_loop``, ``test_loop``, ``predict_loop`` or ``fit_loop.epoch_loop.val_loop``.

    Args:
        trainer: the module's.
        path: where it stands below ``self.trainer``.
        split: whose data it reads.
        word: in the names of its loader and its stage.
    """

    _word: str
    inference_mode = True
    verbose = True
    return_predictions = True

    def __init__(self, trainer: Any, path: str, split: Split, word: str) -> None:
        super().__init__(trainer, path, split, f"{word}_dataloader")
        vars(self).update(_word=word)

    @property
    def _loader(self) -> Any:
        return getattr(self.trainer, f"{self._word}_dataloaders")

    @property
    def max_batches(self) -> list[float]:
        return getattr(self.trainer, f"num_{self._word}_batches")

    @property
    def num_dataloaders(self) -> int:
        combined = self._combined_loader
        return 0 if combined is None else len(combined.flattened)

    @property
    def batch_progress(self) -> _BatchProgress:
        trainer = self.trainer
        active = trainer.client is not None and trainer.state.stage.dataloader_prefix == self._word
        return _batch_progress(trainer, 0, active=active)


class EpochLoop(_Loop):
    """``fit_loop.epoch_loop``: a client's batches of the round."""

    val_loop: EvaluationLoop
    min_steps = None
    max_steps = -1

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer, "fit_loop.epoch_loop", "train", "train_dataloader")
        vars(self).update(val_loop=EvaluationLoop(trainer, "fit_loop.epoch_loop.val_loop", "val", "val"))

    @property
    def _loader(self) -> Any:
        return self.trainer.train_dataloader

    @property
    def batch_progress(self) -> _BatchProgress:
        return _batch_progress(self.trainer, self.trainer.batches_before, active=self.trainer.in_training_turn)

    @property
    def batch_idx(self) -> int:
        return self.batch_progress.current.ready - 1

    @property
    def total_batch_idx(self) -> int:
        return self.batch_progress.total.ready - 1

    @property
    def global_step(self) -> int:
        return self.trainer.global_step

    @property
    def _batches_that_stepped(self) -> int:
        return self.trainer.global_step

    def _should_accumulate(self) -> bool:
        """Whether the optimiser waits for further batches after this one."""
        trainer = self.trainer
        done = (trainer.batch_idx + 1) % trainer.accumulate_grad_batches == 0
        return not (done or trainer.is_last_batch)


class FitLoop(_Loop):
    """``fit_loop``: the rounds."""

    epoch_loop: EpochLoop
    min_epochs = 0
    min_steps = None
    max_steps = -1
    done = False
    _iteration_based_training = False

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer, "fit_loop", "train", "train_dataloader")
        vars(self).update(epoch_loop=EpochLoop(trainer))

    @property
    def _loader(self) -> Any:
        return self.trainer.train_dataloader

    @property
    def max_epochs(self) -> int:
        return self.trainer.max_epochs

    @property
    def max_batches(self) -> float:
        return self.trainer.num_training_batches

    @property
    def batch_idx(self) -> int:
        return self.epoch_loop.batch_idx

    @property
    def total_batch_idx(self) -> int:
        return self.epoch_loop.total_batch_idx

    @property
    def epoch_progress(self) -> _Progress:
        """Rounds that were begun and ended, from the client's side."""
        done = self.trainer.current_epoch
        within, hook = self.trainer.client is not None, self.trainer.model._current_fx_name
        counts = {
            "ready": done + within,
            "started": done + (within and hook != "on_train_epoch_start"),
            "processed": done + (within and hook == "on_train_epoch_end"),
            "completed": done,
        }
        return _Progress(_ProcessedTracker(**counts), _ProcessedTracker(**counts))

    def _should_accumulate(self) -> bool:
        return self.epoch_loop._should_accumulate()


def _batch_progress(trainer: Any, before: int, *, active: bool) -> _BatchProgress:
    """Batches of the turn, and with those of the turns before, that were begun and ended, as Lightning counts them."""
    begun, hook = trainer.batch_idx + 1 if active else 0, trainer.model._current_fx_name or ""
    within = int(bool(begun) and not hook.endswith("_epoch_end"))
    counts = {
        "ready": begun,
        "started": begun - (within and hook.endswith("_batch_start")),
        "processed": begun - (within and not hook.endswith("_batch_end")),
        "completed": begun - within,
    }
    total = {name: before + count for name, count in counts.items()}
    return _BatchProgress(
        _ProcessedTracker(**total), _ProcessedTracker(**counts), is_last_batch=active and trainer.is_last_batch
    )
