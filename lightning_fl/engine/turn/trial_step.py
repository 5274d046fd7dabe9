"""Shapes of lazy layers and settings that are "auto", determined before training by a copy of the module."""

import copy
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from lightning.fabric.plugins.precision import Precision
from lightning.fabric.utilities.rank_zero import rank_zero_info
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, is_lazy

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.seeding import isolated_draws, seed_default_generators
from lightning_fl.engine.batches.client import ClientBatches, SizedBatch
from lightning_fl.engine.batches.factory import BatchFactory
from lightning_fl.engine.batches.packs import PackedBatches
from lightning_fl.engine.batches.transfer import BatchTransfer
from lightning_fl.engine.processes import Processes
from lightning_fl.engine.settings import AUTOMATIC, Settings
from lightning_fl.engine.turn.module_trainer import ModuleTrainer
from lightning_fl.engine.turn.services import takes_batch_index

#: Most weights of a convolution for which channels-last memory saves more than converting them costs.
_MOST_WEIGHTS = 2**17
#: Least number of a module's trained weights for which Adam's fused steps are faster.
_LEAST_WEIGHTS = 2**18


@dataclass(frozen=True)
class TrialSteps:
    """Steps of copies of the module before a run."""

    trainer: ModuleTrainer
    factory: BatchFactory
    processes: Processes
    settings: Settings

    def materialize_lazy_layers(self) -> None:
        """Run ``training_step`` on a copy of a module with lazy parameters, and give the module their shapes.

        The copy is in eval mode without gradients. Initial values are drawn from the run's seed, on rank zero.
        """
        module = self.trainer.lightning_module
        if not _lazy(module):
            return
        problem, shapes = "", {}
        try:
            shapes = self._shapes()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}".rstrip(".")
        found = self.processes.of_ranks((problem, shapes))
        names = ", ".join(map(repr, _lazy(module) or shapes))
        for rank, (text, of_rank) in enumerate(found):
            if text or of_rank != found[0][1]:
                reason = text or f"the shapes are {of_rank} on process {rank} and {found[0][1]} on process 0"
                what = f"parameters {names} have no shape yet (lazy layers), and a first batch does not determine it"
                raise ConfigurationError(f"{what}: {reason}. Run one batch through the module before fit.")

    def _shapes(self) -> dict[str, list[int]]:
        module, hosted = self.trainer.lightning_module, self.processes.hosted
        if not hosted:
            raise ConfigurationError("this process hosts no client: lower trainer.devices")
        if not module.automatic_optimization:
            raise ConfigurationError("the module optimises manually, so its step cannot be tried")
        seed_default_generators(self.settings.seed, "lazy layers")
        batches = self.factory.batches(hosted[0], "train")
        if batches is None:
            raise ConfigurationError(f"client {hosted[0]} has no training data")
        given = batches.once((self.settings.seed, 0, hosted[0], "lazy layers"))
        lazy = [one for one in module.buffers() if is_lazy(one)]  # torch cannot copy these
        copies = {id(one): UninitializedBuffer(device=one.device, dtype=one.dtype) for one in lazy}  # type: ignore[call-arg]
        twin = copy.deepcopy(module, copies).eval()
        self._try(twin, hosted[0], batches, given, self.settings.channels_last is True)
        made = dict(chain(twin.named_parameters(), twin.named_buffers()))
        for name, tensor in _lazy(module).items():
            if is_lazy(made[name]):
                raise ConfigurationError(f"training_step does not use {name!r}")
            tensor.materialize(made[name].shape, made[name].device, made[name].dtype)  # type: ignore[attr-defined]
            tensor.data.copy_(made[name])
        return {name: list(made[name].shape) for name in sorted(made)}

    def automatic_settings(self, state: Mapping[str, Any]) -> dict[str, bool]:
        """The settings that "auto" makes true in a fit; the same on all ranks.

        They are those that gain and work, on a CPU, with clients one after another and automatic optimisation; in a run
        that resumes the ``state`` of a checkpoint, only those that were true there.
        """
        chosen: dict[str, bool] = {}
        choices = (self._fits_channels_last, self._gains_by_fused_steps)
        one_by_one = self.settings.stacked_clients == 1 and self.trainer.lightning_module.automatic_optimization
        if self.processes.device.type == "cpu" and one_by_one:
            for name, gains in zip(AUTOMATIC, choices, strict=True):
                may = not state or (state["recipe"] or {}).get(f"trainer.{name}") == "True"
                if getattr(self.settings, name) == "auto" and may and gains():
                    chosen[name] = True
                    rank_zero_info(f"trainer.{name}=auto: true")
        return chosen

    def _gains_by_fused_steps(self) -> bool:
        """Whether a module is large enough for fused steps to be faster on a CPU, as measured in docs/speed.md."""
        trained = (one.numel() for one in self.trainer.lightning_module.parameters() if one.requires_grad)
        return sum(trained) >= _LEAST_WEIGHTS

    def _fits_channels_last(self) -> bool:
        """Whether images of training batches are to be channels-last: if convolutions gain, and two samples pass the
        ``training_step`` of a copy in eval mode without gradients, where a ``view`` across channels fails.
        """
        module, processes = self.trainer.lightning_module, self.processes
        plain = type(self.trainer.precision_plugin.plugin) is Precision and not self.settings.compile
        if not plain or not _gains(module):
            return False
        problem = "the batches of the first client come from a loader"
        batches = self.factory.batches(0, "train") if processes.hosts(0) else None
        if isinstance(batches, PackedBatches):
            path = (self.settings.seed, 0, 0, "memory format")
            with isolated_draws(), warnings.catch_warnings(action="ignore"):
                seed_default_generators(*path)
                try:
                    self._try(copy.deepcopy(module).eval(), 0, batches, batches.some(path, 2), True)
                    problem = ""
                except Exception as error:
                    problem = f"{type(error).__name__}: {error}".splitlines()[0]
        problem = processes.exchange({0: problem} if processes.hosts(0) else {})[0]
        if problem:
            rank_zero_info(f"trainer.channels_last=auto: false, because {problem}")
        return not problem

    def _try(
        self, twin: LightningModule, client: int, batches: ClientBatches, given: Iterator[SizedBatch], converts: bool
    ) -> None:
        """Run ``training_step`` of a copy of the module on the first of the ``given`` batches, without gradients."""
        trainer = twin.trainer = self.trainer
        precision = trainer.precision_plugin.plugin
        move = BatchTransfer(twin, self.factory.data, twin.device, precision, channels_last=converts)
        batch, size = next(given)
        trainer.begin_turn(client, 0)
        trainer.collector.begin_step(batch, size)
        try:
            with torch.no_grad(), precision.forward_context():
                arguments = (move(batch, batches.on_device, client), 0)
                trainer.call_of(twin, "training_step", *arguments[: 1 + takes_batch_index(twin, "training_step")])
        finally:
            trainer.collector.begin()
            trainer.end_turn()
            trainer._took_turns = False


def _lazy(module: LightningModule) -> dict[str, Tensor]:
    return {name: one for name, one in chain(module.named_parameters(), module.named_buffers()) if is_lazy(one)}


def _gains(module: nn.Module) -> bool:
    """Whether the convolutions are faster with channels-last images on a CPU, by the measurements in docs/speed.md."""
    convolutions = [part for part in module.modules() if type(part) is nn.Conv2d]
    spatial = [part.weight.numel() for part in convolutions if max(part.kernel_size) > 1]
    return max(spatial, default=_MOST_WEIGHTS + 1) <= _MOST_WEIGHTS
