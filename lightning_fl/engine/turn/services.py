"""Services of training and evaluation turns: the module with its hooks and steps, clients' batches and states."""

import inspect
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

from lightning.fabric.plugins.precision import Precision
from lightning.pytorch import LightningModule
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, FederatedError, TrainingError
from lightning_fl.core.held_generators import held_generators, seed_held_generators
from lightning_fl.core.lightning_private import ModuleModes
from lightning_fl.core.lightning_types import is_overridden
from lightning_fl.core.metrics import LoggedValue
from lightning_fl.core.seeding import seed_default_generators
from lightning_fl.core.system_errors import place_of, refusal
from lightning_fl.data.module import FederatedDataModule, Split
from lightning_fl.engine.batches.factory import BatchFactory
from lightning_fl.engine.batches.transfer import BatchTransfer
from lightning_fl.engine.client import ClientReport
from lightning_fl.engine.federation import Federation, Round
from lightning_fl.engine.processes import Processes
from lightning_fl.engine.profile import DATA, HOOKS
from lightning_fl.engine.settings import Settings
from lightning_fl.engine.turn.callback_states import CallbackStates
from lightning_fl.engine.turn.metric_states import MetricStates
from lightning_fl.engine.turn.module_trainer import STAGES, ModuleTrainer
from lightning_fl.engine.weights.flat import FlatModule, Weights

_TRAINING = (TrainerFn.FITTING, RunningStage.TRAINING)
#: Name of a stage in hooks and steps -> its name in the trainer.
WORDS = {"validation": "validate", "test": "test", "predict": "predict"}
#: Hooks called once for all clients -> stage of the trainer.
_HOOKS_OF_RUN = {
    f"on_{word}_{moment}": STAGES[stage] for word, stage in WORDS.items() for moment in ("start", "end")
} | dict.fromkeys(("on_train_start", "on_train_end", "on_fit_end"), _TRAINING)
#: Those that a fit calls in every round.
_HOOKS_OF_ROUND = frozenset({"on_validation_start", "on_validation_end"})


@dataclass(eq=False, repr=False)
class TurnServices:
    """The module of this process and the run's state, for the parts that train and evaluate clients."""

    module_trainer: ModuleTrainer  #: with the module, which is on its device
    flat: FlatModule
    data: FederatedDataModule
    factory: BatchFactory
    settings: Settings
    federation: Federation
    round: Round
    processes: Processes
    #: Whether images of training batches are in channels-last memory.
    channels_last: bool = field(default=False, kw_only=True)
    #: Whether optimisers with a fused step take it.
    fused_optimizers: bool = field(default=False, kw_only=True)
    #: What ``settings.optimizer_state`` is, or "auto" has become.
    optimizer_state: Literal["fresh", "keep", "average"] = field(default="fresh", kw_only=True)
    module: LightningModule = field(init=False)

    def __post_init__(self) -> None:
        trainer = self.module_trainer
        self.module = module = trainer.lightning_module
        self.profiler: Profiler = trainer.profiler
        if is_overridden("configure_sharded_model", module):
            what = f"{type(module).__name__}.configure_sharded_model is not called"
            raise ConfigurationError(f"{what}: rename it to configure_model.")
        self._overridden: dict[str, bool] = {}  # cached, because every step looks it up
        steps = ("training_step", "validation_step", "test_step", "predict_step")
        self._step_takes_index = {name: takes_batch_index(module, name) for name in steps}
        self._precision: Precision = trainer.precision_plugin.plugin
        self.precision = str(self._precision.precision)
        everywhere = self.settings.channels_last is True
        self.move = BatchTransfer(module, self.data, self.processes.device, self._precision, channels_last=everywhere)
        self.mode = ModuleModes()  # training flags of the submodules, saved during an evaluation
        self.read_module()

    @property
    def keeps_states(self) -> bool:
        """Whether clients keep the states of optimisers that are not averaged."""
        return self.optimizer_state == "keep" or self.settings.optimizer_state == "average"

    def read_module(self) -> None:
        """Find the module's metrics, callbacks with states and generators; again after a hook has added parts."""
        self.metric_states = MetricStates(self.module, self.federation)
        self.callback_states = CallbackStates(self.module_trainer, self.flat, self.federation)
        self.held_generators = held_generators(*self.module.modules())

    def path(self, client: int, purpose: str) -> tuple[int, int, int, str]:
        """Seed path of a client's draws for one purpose in the current round."""
        return self.settings.seed, self.federation.current_round, client, purpose

    def seed_user_code(self, *path: int | str) -> None:
        seed_default_generators(*path)  # type: ignore[arg-type]
        seed_held_generators(self.held_generators, *path)  # type: ignore[arg-type]

    def name_of(self, client: int) -> str:
        return f"client {client} ({self.data.client_names()[client]})"

    def global_step(self, client: int) -> int:
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
        if personal is not None and own and (values := self.federation.personal_layers.get(client)) is not None:
            personal.insert_(self.flat.weights, values)

    def explain(self, error: Exception) -> str:
        """What failed in a client's training, where, and what to do."""
        if isinstance(error, FederatedError):
            text = str(error)
            return text if text.endswith((".", "!", "?")) else f"{text}."
        text = refusal(error) or f"{type(error).__name__}: {error}"
        if place := place_of(error, type(self.module).__module__.split(".")[0]):
            text = f"{text.removesuffix('.')}{place}."
        text += "" if text.endswith((".", "!", "?")) else "."
        if self.channels_last and "view size is not compatible" in text:
            remedy = "set trainer.channels_last=false if the module needs `view`."
            text += f" The images are in channels-last memory: {remedy}"
        if self.precision != "32-true" and any(word in text for word in ("dtype", "BFloat16", "Double")):
            text += f" The run uses trainer.precision={self.precision}: try 32, or bf16-mixed to save memory."
        return text

    def refuse_new(self, where: str, client: int | None = None) -> None:
        """Refuse parameters and buffers that were created while clients already train."""
        if new := self.flat.new_tensors():
            where += "" if client is None else f" of {self.name_of(client)}"
            what = f"{', '.join(map(repr, new))} appeared {where}, after training started"
            raise TrainingError(f"{what}: create it in __init__, configure_model, on_fit_start or on_train_start.")

    def overridden(self, name: str) -> bool:
        """Whether the module, or a callback of its ``configure_callbacks``, defines a hook."""
        if name not in self._overridden:
            self._overridden[name] = is_overridden(name, self.module) or name in self.module_trainer.watching
        return self._overridden[name]

    def call(self, name: str, *args: Any) -> Any:
        """Call a hook of the module if it is defined, with ``self.log`` knowing the caller."""
        if not self.overridden(name):
            return None
        trainer = self.module_trainer
        with self.profiler.profile(HOOKS):
            if name not in _HOOKS_OF_RUN:
                return trainer.call_hook(name, *args)
            self._set_stage_of(name)
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

    def call_apart(self, name: str) -> None:
        """Call a hook of Lightning's callbacks that act once for all clients."""
        if name in self.module_trainer.lightning_callbacks.apart:
            self._set_stage_of(name)
            with self.profiler.profile(HOOKS):
                self.module_trainer.call_apart(name)

    def _set_stage_of(self, hook: str) -> None:
        fn, stage = _HOOKS_OF_RUN.get(hook, _TRAINING)
        self.module_trainer.set_stage(TrainerFn.FITTING if self.round.fitting else fn, stage)

    def step(self, name: str, batch: Any, index: int, *which: int) -> Any:
        """Call a step of the module; ``which`` is the loader's number if there are several."""
        arguments = (batch, index, *which) if self._step_takes_index[name] else (batch, *which)
        with nullcontext() if type(self._precision) is Precision else self._precision.forward_context():
            return self.module_trainer.call_hook(name, *arguments)

    def loss(self, output: Any) -> Tensor | None:
        """The loss in the output of ``training_step``; ``None`` if the batch is left out."""
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if loss is None:
            if output is not None and self.module.automatic_optimization:
                what = f"training_step returned a dict without 'loss' (keys: {', '.join(map(str, output))})"
                raise TrainingError(f"{what}: add the loss, or return None to leave the batch out.")
            return None
        if not isinstance(loss, Tensor):
            kind = type(loss).__name__
            raise TrainingError(f"training_step returned {kind}: return a tensor, a dict with 'loss', or None.")
        return loss


def refuse_manual_steps(module: LightningModule, who: str) -> None:
    """Refuse manual optimisation where losses or gradients are needed."""
    if not module.automatic_optimization:
        what = f"{who} needs the loss that training_step returns, and {type(module).__name__} optimises manually"
        raise ConfigurationError(f"{what}: use automatic optimisation, or remove {who}.")


def takes_batch_index(module: LightningModule, name: str) -> bool:
    """Whether a step takes the batch's index, passed by position as in Lightning; other arguments are refused."""
    signature = inspect.signature(getattr(module, name))
    step = f"{type(module).__name__}.{name}"
    if "dataloader_iter" in signature.parameters:
        raise ConfigurationError(f"{step} takes 'dataloader_iter': define {name}(self, batch, batch_idx) instead.")
    kinds = [parameter.kind.name for parameter in signature.parameters.values()]
    takes_index = "VAR_POSITIONAL" in kinds or sum(kind.startswith("POSITIONAL") for kind in kinds) >= 2
    loader = name != "training_step" and "dataloader_idx" in signature.parameters
    try:
        signature.bind(*range(1 + takes_index), **({"dataloader_idx": 0} if loader else {}))
    except TypeError as error:
        what = f"{step} gets a batch and its index, by position ({error})"
        raise ConfigurationError(f"{what}: give other arguments default values.") from error
    return takes_index


@dataclass
class TurnLength:
    """Length of a turn; for data of unknown length it is determined during the turn.

    A step accumulates fewer batches at the end of the turn, and of an epoch of known length.
    """

    accumulate: int
    total: float
    epoch_length: int | None
    steps: float
    epochs: int = 1
    run_steps: float = math.nan  # of all turns
    _begin: int = 0  # first batch of an epoch of unknown length
    _last: int = -1  # its last batch, once known

    def end_epoch(self, index: int, last: bool) -> None:
        """Record that the next batch is the last of its epoch, or of the turn."""
        self._last = index
        if last:
            self.total = index + 1

    def begins_step(self, index: int) -> bool:
        """Whether a batch, in ascending order, is the first of a step; steps restart in every epoch."""
        return self.accumulate == 1 or self._place(index) % self.accumulate == 0

    def ends_step(self, index: int) -> bool:
        if self.accumulate == 1:
            return True
        place = self._place(index)
        ended = (place + 1) % self.accumulate == 0 or index == self.total - 1
        return ended or place + 1 == self.epoch_length or index == self._last

    def _place(self, index: int) -> int:
        if self.epoch_length:
            return index % self.epoch_length
        if 0 <= self._last < index:
            self._begin, self._last = index, -1
        return index - self._begin


def turn_report(
    num_samples: int, num_steps: int, metrics: dict[str, LoggedValue], losses: Sequence[float], sizes: Sequence[float]
) -> ClientReport:
    """Report a turn, with the mean loss as ``train/loss`` unless the module logs that; a loss must be finite."""
    for number, value in enumerate(losses, 1):
        if not math.isfinite(value):
            what = f"the training loss is {value} at local batch {number} of {len(losses)}"
            raise TrainingError(f"{what}. Lower the learning rate, set trainer.gradient_clip_val, or check the data.")
    if losses:
        mean = math.fsum(value * size for value, size in zip(losses, sizes, strict=True)) / (sum(sizes) or math.nan)
        metrics.setdefault("train/loss", LoggedValue(mean, float(sum(sizes)), higher_is_better=False))
    return ClientReport(num_samples, num_steps, metrics)
