"""What the parts of clients' turns share: the module with its hooks and steps, the clients' batches and states."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from lightning.fabric.plugins.precision import Precision
from lightning.pytorch import LightningModule
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from torch import Tensor

from lightning_fl.core.errors import TrainingError
from lightning_fl.core.held_generators import held_generators, seed_held_generators
from lightning_fl.core.lightning_private import ModuleModes
from lightning_fl.core.lightning_types import is_overridden
from lightning_fl.core.seeding import seed_default_generators
from lightning_fl.data.module import FederatedDataModule, Split
from lightning_fl.engine.batches.factory import BatchFactory
from lightning_fl.engine.batches.transfer import BatchTransfer
from lightning_fl.engine.federation import Federation
from lightning_fl.engine.present_round import Round
from lightning_fl.engine.processes import Processes
from lightning_fl.engine.profile import DATA, HOOKS
from lightning_fl.engine.settings import Settings
from lightning_fl.engine.turn.callback_states import CallbackStates
from lightning_fl.engine.turn.metric_states import MetricStates
from lightning_fl.engine.turn.module_checks import refuse_hooks, takes_batch_index
from lightning_fl.engine.turn.module_trainer import STAGES, ModuleTrainer
from lightning_fl.engine.weights.flat import FlatModule, Weights

__all__ = ["TurnServices"]

_TRAINING = (TrainerFn.FITTING, RunningStage.TRAINING)
_WORDS = {"validation": "validate", "test": "test", "predict": "predict"}
#: Hooks called once for all clients -> stage of the trainer.
_HOOKS_OF_RUN = {
    f"on_{word}_{moment}": STAGES[stage] for word, stage in _WORDS.items() for moment in ("start", "end")
} | dict.fromkeys(("on_train_start", "on_train_end", "on_fit_end"), _TRAINING)
#: Those that a fit calls in every round.
_HOOKS_OF_ROUND = frozenset({"on_validation_start", "on_validation_end"})


@dataclass(eq=False, repr=False)
class TurnServices:
    """The module of this process and the run's state, for the parts that train and evaluate clients.

    Raises:
        ConfigurationError: the module has a hook or signature that is not supported in a federated turn.
    """

    module_trainer: ModuleTrainer
    """the module's ``self.trainer``; the module is on its device."""
    flat: FlatModule
    """the module's flat weights."""
    data: FederatedDataModule
    """of all clients."""
    factory: BatchFactory
    """the clients' batches."""
    settings: Settings
    """of the run."""
    federation: Federation
    """models and clients' states."""
    round: Round
    """the present round."""
    processes: Processes
    """hosts of the clients."""
    module: LightningModule = field(init=False)

    def __post_init__(self) -> None:
        trainer = self.module_trainer
        self.module = module = trainer.lightning_module
        self.profiler: Profiler = trainer.profiler
        refuse_hooks(module)
        self._overridden: dict[str, bool] = {}  # cached, because every step looks it up
        steps = ("training_step", "validation_step", "test_step", "predict_step")
        self._step_takes_index = {name: takes_batch_index(module, name) for name in steps}
        self._precision: Precision = trainer.precision_plugin.plugin
        self.precision = str(self._precision.precision)
        channels_last = self.settings.channels_last
        self.move = BatchTransfer(
            module, self.data, self.processes.device, self._precision, channels_last=channels_last
        )
        self.mode = ModuleModes()  # training flags of the submodules, saved during an evaluation
        self.read_module()

    def read_module(self) -> None:
        """Find the module's metrics, callbacks with states and generators; again after a hook has added parts."""
        self.metric_states = MetricStates(self.module, self.federation)
        self.callback_states = CallbackStates(self.module_trainer, self.flat, self.federation)
        self.held_generators = held_generators(*self.module.modules())

    def path(self, client: int, purpose: str) -> tuple[int, int, int, str]:
        """Seed path of a client's draws for one purpose in the current round."""
        return self.settings.seed, self.federation.current_round, client, purpose

    def seed_user_code(self, *path: int | str) -> None:
        """Seed the default generators, and those of the module."""
        seed_default_generators(*path)  # type: ignore[arg-type]
        seed_held_generators(self.held_generators, *path)  # type: ignore[arg-type]

    def name_of(self, client: int) -> str:
        """A client's name in messages."""
        return f"client {client} ({self.data.client_names()[client]})"

    def global_step(self, client: int) -> int:
        """Optimiser steps of a client in the run."""
        state = self.federation.client_states.get(client)
        return 0 if state is None else state.global_step

    def batches(self, client: int, split: Split) -> Any:
        """A client's batches, after callbacks (such as label noise) changed them."""
        with self.profiler.profile(DATA):
            found, state = self.factory.batches(client, split), self.federation.client_states.get(client)
        if found is not None:
            found.next_pass = 0 if state is None else state.passes
        return found

    def load(self, client: int, weights: Weights, own: bool) -> None:
        """Load weights into the module, with the client's personal layers if ``own``."""
        self.flat.load(weights)
        personal = self.federation.personal
        if personal is not None and own:
            values = self.federation.personal_layers.get(client)
            if values is not None:
                personal.insert_(self.flat.weights, values)

    def refuse_new(self, where: str, client: int | None = None) -> None:
        """Refuse parameters and buffers that were created while clients already train.

        Args:
            where: place of the check, for the message.
            client: in turn.
        """
        new = self.flat.new_tensors()
        if new:
            where += "" if client is None else f" of {self.name_of(client)}"
            raise TrainingError(
                f"{', '.join(map(repr, new))} appeared {where}, after training started: create it in __init__,"
                " configure_model, on_fit_start or on_train_start, frozen if it is to be trained later."
            )

    def overridden(self, name: str) -> bool:
        """Whether the module, or a callback of its ``configure_callbacks``, defines a hook."""
        if name not in self._overridden:
            self._overridden[name] = is_overridden(name, self.module) or name in self.module_trainer.watching
        return self._overridden[name]

    def call(self, name: str, *args: Any) -> Any:
        """Call a hook of the module if it is defined, with ``self.log`` knowing the caller."""
        if not self.overridden(name):
            return None
        with self.profiler.profile(HOOKS):
            return self._call(name, *args)

    def call_apart(self, name: str) -> None:
        """Call a hook of Lightning's callbacks that act once for all clients."""
        trainer = self.module_trainer
        if name in trainer.lightning_callbacks.apart:
            fn, stage = _HOOKS_OF_RUN.get(name, _TRAINING)
            trainer.set_stage(TrainerFn.FITTING if self.round.fitting else fn, stage)
            with self.profiler.profile(HOOKS):
                trainer.call_apart(name)

    def _call(self, name: str, *args: Any) -> Any:
        trainer = self.module_trainer
        if name not in _HOOKS_OF_RUN:
            return trainer.call_hook(name, *args)
        fn, stage = _HOOKS_OF_RUN[name]
        trainer.set_stage(TrainerFn.FITTING if self.round.fitting else fn, stage)
        trainer.begin_hook_of_run()
        if name == "on_train_start":  # may draw initial weights
            seed_default_generators(self.settings.seed, name)
        if name not in _HOOKS_OF_ROUND:
            return trainer.call_hook(name, *args)
        with self.metric_states.hook_of_round():
            returned = trainer.call_hook(name, *args)
        if self.round.fitting:
            self.refuse_new(f"in {name}")
        return returned

    def step(self, name: str, batch: Any, index: int, *which: int) -> Any:
        """Call a step of the module; ``which`` is the loader's number if there are several."""
        arguments = (batch, index, *which) if self._step_takes_index[name] else (batch, *which)
        with self._forward_context():
            return self.module_trainer.call_hook(name, *arguments)

    def _forward_context(self) -> AbstractContextManager:
        return nullcontext() if type(self._precision) is Precision else self._precision.forward_context()

    def loss(self, output: Any) -> Tensor | None:
        """The loss in the output of ``training_step``; ``None`` if the batch is left out."""
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if loss is None:
            if output is not None and self.module.automatic_optimization:
                raise TrainingError(
                    f"training_step returned a dict without 'loss' (keys: {', '.join(map(str, output))}): add the loss,"
                    " or return None to leave the batch out."
                )
            return None
        if not isinstance(loss, Tensor):
            raise TrainingError(
                f"training_step returned {type(loss).__name__}: return the loss as a tensor, a dict with 'loss', or"
                " None."
            )
        return loss
