"""Optimisers and learning-rate schedulers of a client's turn, called as in Lightning's loops."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightning.fabric.plugins.precision import MixedPrecision, Precision
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch.core.optimizer import (
    _configure_optimizers,
    _configure_schedulers_automatic_opt,
    _configure_schedulers_manual_opt,
    _validate_multiple_optimizers_support,
    _validate_optimizers_attached,
)
from lightning.pytorch.utilities.types import STEP_OUTPUT, LRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer

from lightning_fl.core.errors import ConfigurationError, TrainingError
from lightning_fl.core.lightning_private import NoOptimizer
from lightning_fl.core.lightning_types import is_overridden, own_lightning
from lightning_fl.engine.client import ClientState, Correction
from lightning_fl.engine.learner import Learner
from lightning_fl.engine.profile import BACKWARD
from lightning_fl.engine.turn.averaged_states import AveragedStates
from lightning_fl.engine.turn.flat_optimizer import FlatOptimizer, GradientCorrection, has_fused_step
from lightning_fl.engine.turn.schedulers import PristineOptimizers, Schedulers, held_schedulers
from lightning_fl.engine.turn.services import TurnServices
from lightning_fl.engine.weights.flat import Weights

#: Hooks of a module that take part in an optimiser's step.
STEP_HOOKS = (
    *("on_before_zero_grad", "optimizer_zero_grad", "on_before_backward", "backward", "on_after_backward"),
    *("on_before_optimizer_step", "configure_gradient_clipping", "optimizer_step"),
)

Compute = Callable[[], tuple[Tensor | None, STEP_OUTPUT]]
_HOST = torch.device("cpu")


class Optimization:
    """Creates a client's optimisers and schedulers at the start of its turn and takes its steps.

    Schedulers continue from round to round: with ``interval: step`` they count the client's own steps, with ``interval:
    epoch`` the rounds of the run, whether or not the client took part. A scheduler that monitors a metric sees its
    latest value once, at the client's next turn.
    """

    def __init__(self, services: TurnServices) -> None:
        module, module_trainer, settings = services.module, services.module_trainer, services.settings
        self._settings = settings
        self._state, self._keeps = services.optimizer_state, services.keeps_states
        self._fused = services.fused_optimizers
        self._federation = services.federation
        self._flat_module = services.flat
        self._flat: FlatOptimizer | None = None
        self._flat_before: FlatOptimizer | None = None
        self._flat_is_due = False
        self._correct_: Correction | None = None
        self._correction: GradientCorrection | None = None
        self._moments: dict[str, Weights] | None = None
        self._pristine = PristineOptimizers()
        self._group_sizes: list[list[int]] = []
        #: Schedulers in attributes of the module, which steps them itself.
        self.held_schedulers: list[Any] = []
        self._module = module
        self.index_parameters()
        self._validated = False
        self._warned_not_fused = False
        self._trainer = module_trainer
        self._schedulers = Schedulers(module_trainer, settings, services.federation, services.round)
        module_trainer.before_optimizer_step = self._before_step
        self._own = {name: is_overridden(name, module) or name in module_trainer.watching for name in STEP_HOOKS}
        if not module.automatic_optimization:
            neutrals = {"gradient_clip_val": None, "accumulate_grad_batches": 1, "fused_optimizers": False}
            neutrals["scheduler_interval"] = None
            for name, neutral in neutrals.items():
                if getattr(settings, name) not in (neutral, "auto"):
                    what = f"trainer.{name}={getattr(settings, name)} needs automatic optimisation"
                    manual = f"{type(module).__name__} optimises manually, so do this in its training_step"
                    raise ConfigurationError(f"{what}: {manual}.")

    def index_parameters(self) -> None:
        """Record the module's parameters; call it again if hooks create others before the first turn."""
        self._parameters = list(self._module.parameters())
        self._names = {id(parameter): name for name, parameter in self._module.named_parameters()}
        self.averaged = AveragedStates(self._module, self._flat_module)

    def begin_at_zero(self, learner: Learner) -> None:
        """Let momentum begin at zero in every turn if the learner needs that; refuse a setting against it."""
        if self._state in learner.without_states:
            if self._settings.optimizer_state != "auto":
                what = f"trainer.optimizer_state={self._state}: {type(learner).__name__} with momentum needs"
                raise ConfigurationError(f"{what} a momentum that begins at zero in every turn. Set it to fresh.")
            self._state, self._keeps = "fresh", False

    def end_run(self) -> None:
        self._end_flat()
        self._pristine.restore()

    def begin(
        self,
        state: ClientState,
        correct_: Correction | None = None,
        moments: dict[str, Weights] | None = None,
        *,
        trains: bool = True,
    ) -> None:
        """Begin a turn. With ``moments``, an averaged state to begin with, :meth:`end` replaces them by the turn's.

        Unless it ``trains``, optimisers and schedulers are as the client's last turn left them.
        """
        self._correct_, self._correction, self._moments = correct_, None, moments
        optimizers, schedulers = self.configure()
        for parameter in self._parameters:
            parameter.grad = None
        if state.parameters:
            self._regroup(optimizers, state)
        self._group_sizes, self._rates = _group_sizes(optimizers), _rates(optimizers)
        self._trainer.take_optimizers(optimizers, schedulers)
        schedulers, averages = self._trainer.lr_scheduler_configs, self._trainer.lightning_callbacks.averages
        if averages is not None and state.schedulers and state.rounds_seen >= averages.start:
            averages.replace_schedulers(self._trainer)  # as in its last turn
            averages = None
        if state.optimizers:
            for optimizer, saved in zip(optimizers, state.optimizers, strict=True):
                optimizer.load_state_dict(saved)
        if moments:
            self.averaged.load(moments, optimizers)
        if state.schedulers:
            scheduling = [*(config.scheduler for config in schedulers), *self.held_schedulers]
            for scheduler, saved in zip(scheduling, state.schedulers, strict=False):  # there may be a new one
                scheduler.load_state_dict(saved)
        if state.schedulers or (state.groups and not state.optimizers):
            for optimizer, saved_groups in zip(optimizers, state.groups, strict=True):
                for group, saved_group in zip(optimizer.param_groups, saved_groups, strict=False):  # hooks may add
                    group.update(saved_group)
        if not trains:
            return
        self._end_flat()
        self._flat_is_due = True  # created at the first step, because hooks may change groups until then
        if (schedulers or averages) and self._module.automatic_optimization:
            with warnings.catch_warnings():
                # The fresh optimiser's steps were taken in earlier rounds.
                warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
                now = self._federation.current_round
                for done in range(state.rounds_seen, now + 1):
                    if averages is not None and done == averages.start:
                        averages.replace_schedulers(self._trainer)
                    if done < now:
                        with self._trainer.in_round(done):
                            self._schedulers.step("round", done + 1, latest=done + 1 == now)
        state.rounds_seen = self._federation.current_round

    def show_state(self) -> None:
        """Return the flat form's state to the optimiser, for hooks that read it, unless it is fresh in every turn."""
        if self._state != "fresh":
            self._release()

    def end(self, state: ClientState) -> None:
        optimizers = self._trainer.optimizers
        if self._state != "fresh":
            self._release()
            if self._moments is not None:
                self._moments.clear()
                try:
                    self._moments.update(self.averaged.read(optimizers, self._federation.personal))
                except ConfigurationError:
                    if self._settings.optimizer_state != "auto":
                        raise
                    self._state = "fresh"
            if self._keeps and (self._moments is None or self._federation.personal is not None):
                state.optimizers = _on_host(optimizers)
        self._keep_settings(state)

    def end_validation(self, state: ClientState) -> None:
        """Keep what hooks of a client's validation changed."""
        if state.optimizers:
            state.optimizers = _on_host(self._trainer.optimizers)
        self._keep_settings(state)

    def _keep_settings(self, state: ClientState) -> None:
        optimizers, schedulers = self._trainer.optimizers, self._trainer.lr_scheduler_configs
        first_kept = state.optimizers and not state.parameters
        if first_kept or _group_sizes(optimizers) != self._group_sizes:
            state.parameters = self._named_groups(optimizers)
        scheduling = [*(config.scheduler for config in schedulers), *self.held_schedulers]
        if scheduling:
            state.schedulers = [dict(scheduler.state_dict()) for scheduler in scheduling]
        if scheduling or state.parameters:
            state.groups = [
                [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
                for optimizer in optimizers
            ]
        elif self._state != "fresh" and (state.groups or _rates(optimizers) != self._rates):  # changed by hand
            state.groups = _rates(optimizers)

    def _named_groups(self, optimizers: Sequence[Optimizer]) -> list[list[list[str]]]:
        """Names of the parameters in each group; empty if an optimiser has parameters outside the module."""
        try:
            return [
                [[self._names[id(one)] for one in group["params"]] for group in of.param_groups] for of in optimizers
            ]
        except KeyError:
            return []

    def _regroup(self, optimizers: Sequence[Optimizer], state: ClientState) -> None:
        """Restore the groups at the end of the client's last turn, because hooks add groups only once."""
        own = dict(self._module.named_parameters())
        for optimizer, groups, values in zip(optimizers, state.parameters, state.groups, strict=True):
            made = {
                tuple(self._names.get(id(one)) for one in group["params"]): group for group in optimizer.param_groups
            }
            if list(made) == [tuple(names) for names in groups]:
                continue
            if missing := [name for names in groups for name in names if name not in own]:
                what = f"the client's optimiser has a state of the parameter '{missing[0]}', which the module lacks"
                raise ConfigurationError(f"{what}: create it before training starts, in every run.")
            optimizer.param_groups.clear()
            for names, saved in zip(groups, values, strict=True):
                hyper_parameters = made.get(tuple(names), saved)
                optimizer.add_param_group({**hyper_parameters, "params": [own[name] for name in names]})

    def configure(self) -> tuple[list[Optimizer], list[LRSchedulerConfig]]:
        """Optimisers and schedulers of ``configure_optimizers``, restored to their initial state if reused."""
        module = self._module
        self._pristine.restore()
        made: Any = self._trainer.call_hook("configure_optimizers")
        optimizers, schedulers, monitor = (
            ([made], [], None)  # Lightning's check, against a protocol, takes longer than loading the weights
            if isinstance(made, Optimizer)
            else _configure_optimizers(NoOptimizer() if made is None else made)
        )
        if module.automatic_optimization:
            configs = _configure_schedulers_automatic_opt(schedulers, monitor)
        else:
            configs = _configure_schedulers_manual_opt(schedulers)
        if not self._validated:  # once per run, because all clients have the same
            _validate_multiple_optimizers_support(optimizers, module)
            _validate_optimizers_attached(optimizers, configs)
            own_lightning(module, "core.optimizer")._validate_scheduler_api(configs, module)
            self._validated = True
        if late := set(self._flat_module.late_names):  # Lightning's Trainer creates optimisers before on_train_start
            for group in (group for optimizer in optimizers for group in optimizer.param_groups):
                group["params"] = [one for one in group["params"] if self._names.get(id(one)) not in late]
        returned = [config.scheduler for config in configs]
        self.held_schedulers = held_schedulers(module, optimizers, returned)
        self._pristine.check([*optimizers, *returned, *self.held_schedulers])
        return optimizers, configs

    def step(self, compute: Compute, index: int, *, first: bool, stepping: bool) -> tuple[Tensor | None, STEP_OUTPUT]:
        """Process one batch by ``compute``, the ``first`` of a step or not; step the optimiser if ``stepping``."""
        if not self._module.automatic_optimization:
            return compute()
        optimizer = self._trainer.optimizers[0]
        accumulate = self._trainer.accumulate_grad_batches
        result: list[tuple[Tensor | None, STEP_OUTPUT]] = []

        def closure() -> Tensor | None:
            with torch.enable_grad():  # the optimiser may have switched gradients off
                loss, output = compute()
                result.append((loss, output))
                if first:
                    self._zero_grad(optimizer, index)
                if loss is None:
                    return None
                loss = loss / accumulate if accumulate > 1 else loss
                with self._trainer.profiler.profile(BACKWARD):
                    self._backward(loss)
                if first and accumulate > 1 and "training_step" in vars(self._module):
                    # Copied, because a CUDA graph's next run would overwrite them (pytorch/pytorch#169545).
                    for parameter in self._parameters:
                        if parameter.grad is not None:
                            parameter.grad = parameter.grad.clone()
            return loss.detach()

        if stepping and self._flat_is_due:
            self._flat, self._flat_is_due = self._flat_optimizer(optimizer), False
        if not stepping:
            closure()
        elif self._flat is not None:
            closure()
            self._before_step(optimizer)
            self._flat_step(self._flat, optimizer)
        elif self._own["optimizer_step"]:
            wrapped = self._module.optimizers()
            self._trainer.call_hook("optimizer_step", self._trainer.current_epoch, index, wrapped, closure)
        else:
            self._trainer.strategy.optimizer_step(optimizer, closure)
        if not result:
            what = f"{type(self._module).__name__}.optimizer_step did not run its closure"
            remedy = "call optimizer.step(closure=optimizer_closure), or optimizer_closure() to skip the step"
            raise TrainingError(f"{what}: {remedy}.")
        if stepping:  # counted without a loss too, as in Lightning, for schedulers
            self._trainer.count_step()
            if self._trainer.lr_scheduler_configs:
                self._schedulers.step("step", self._trainer.global_step, plateau=False)
        return result[-1]

    def step_plateaus(self) -> None:
        """Step schedulers by metrics after ``on_train_batch_end``, which may log these, as in Lightning."""
        if self._module.automatic_optimization and self._trainer.lr_scheduler_configs:
            self._schedulers.step("step", self._trainer.global_step, plateau=True)

    def _flat_optimizer(self, optimizer: Optimizer) -> FlatOptimizer | None:
        plain = len(self._trainer.optimizers) == 1 and not self._own["optimizer_step"]
        plain = plain and _steps_plainly(self._trainer.precision_plugin.plugin)
        fused = self._fused and has_fused_step(optimizer, gains=self._settings.fused_optimizers == "auto")
        flat = FlatOptimizer.of(optimizer, self._flat_module, self._flat_before, fused=fused) if plain else None
        if flat is None or not has_fused_step(optimizer):
            self.warn_not_fused(optimizer)
        return flat

    def warn_not_fused(self, optimizer: Optimizer) -> None:
        """Warn once that ``trainer.fused_optimizers: true`` has no effect on an optimiser."""
        if self._settings.fused_optimizers is True and not self._warned_not_fused:
            self._warned_not_fused = True
            rank_zero_warn(
                f"trainer.fused_optimizers has no effect on {type(optimizer).__name__}: it needs torch's SGD, Adam,"
                " AdamW or Adagrad, parameters in float32 or float64 that are not frozen and have gradients, and no"
                " hooks, optimizer_step, foreach, fused, capturable or differentiable."
            )

    def _flat_step(self, flat: FlatOptimizer, optimizer: Optimizer) -> None:
        stepped = flat.step()
        if not stepped:
            outdated = flat.outdated
            self._release()
            self._flat = self._flat_optimizer(optimizer) if outdated else None
            stepped = self._flat is not None and self._flat.step()
        if stepped:
            optimizer._opt_called = True  # type: ignore[attr-defined]  # what schedulers look for
            return
        self._flat = None  # a parameter has no gradient and must not change: step parameters one by one
        self.warn_not_fused(optimizer)
        optimizer.step()

    def _end_flat(self) -> None:
        if self._flat is not None:
            self._flat.end()
            self._flat_before, self._flat = self._flat, None

    def _release(self) -> None:
        if self._flat is not None:
            self._flat.release()
            self._flat = None

    def _hook(self, name: str, *args: Any) -> bool:
        """Call a hook if the module, or a callback of its own, defines it; returns whether one does."""
        if self._own[name]:
            self._trainer.call_hook(name, *args)
        return self._own[name]

    def _zero_grad(self, optimizer: Optimizer, index: int) -> None:
        self._hook("on_before_zero_grad", optimizer)
        if self._own["optimizer_zero_grad"]:
            self._trainer.call_hook("optimizer_zero_grad", self._trainer.current_epoch, index, optimizer)
        elif self._flat is None:
            optimizer.zero_grad()
        else:  # the same, without the marks of torch's profiler, which take longer than a small model's step
            for parameter in (one for group in optimizer.param_groups for one in group["params"]):
                parameter.grad = None

    def _backward(self, loss: Tensor) -> None:
        self._hook("on_before_backward", loss)
        if not self._hook("backward", loss):
            self._trainer.precision_plugin.backward(loss, self._module)
        self._hook("on_after_backward")

    def _before_step(self, optimizer: Optimizer) -> None:
        if self._correct_ is not None:
            if self._correction is None:
                self._correction = GradientCorrection(self._flat_module, self._federation.personal, self._correct_)
            self._correction.apply_(optimizer)
        self._hook("on_before_optimizer_step", optimizer)
        if not self._module.automatic_optimization:
            return
        clip, algorithm = self._settings.gradient_clip_val, self._settings.gradient_clip_algorithm
        if self._own["configure_gradient_clipping"]:
            given = {"gradient_clip_val": clip, "gradient_clip_algorithm": self._trainer.gradient_clip_algorithm}
            self._trainer.call_hook("configure_gradient_clipping", optimizer, **given)
        elif clip:
            self._module.clip_gradients(optimizer, clip, algorithm or "norm")


def _steps_plainly(precision: Precision) -> bool:
    """Whether a precision does not change optimiser steps, as a loss scaler does."""
    if isinstance(precision, MixedPrecision):
        return type(precision) is MixedPrecision and precision.scaler is None
    return type(precision).optimizer_step is Precision.optimizer_step


def _group_sizes(optimizers: Sequence[Optimizer]) -> list[list[int]]:
    return [[len(group["params"]) for group in optimizer.param_groups] for optimizer in optimizers]


def _rates(optimizers: Sequence[Optimizer]) -> list[list[dict[str, Any]]]:
    return [[{"lr": group["lr"]} if "lr" in group else {} for group in of.param_groups] for of in optimizers]


def _on_host(optimizers: Sequence[Optimizer]) -> list[dict[str, Any]]:
    """States for a client to keep, on the host, because all clients' are kept and go into checkpoints."""
    return [move_data_to_device(optimizer.state_dict(), _HOST) for optimizer in optimizers]
