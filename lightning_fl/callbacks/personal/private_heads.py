"""Shared trunk with a private head per client, for clients with different targets.

The setting of MELLODDY (Heyndrickx et al.: Cross-pharma Federated Learning at Unprecedented Scale, J. Chem. Inf. Model.
2024, https://doi.org/10.1021/acs.jcim.3c00799): companies have their own assays, whose heads stay private, on a common
trunk. Based on :class:`PersonalLayers`.

Differs from the paper: averages are weighted by samples, and updates are not encrypted.
"""

import torch
from torch import nn

from lightning_fl.callbacks.personal.personal_layers import PersonalLayers
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.federation import PERSONAL_LAYERS
from lightning_fl.engine.probes.statistics import client_statistics
from lightning_fl.runtime.surface import TrainerSurface

#: Buffers with the scale of a model's targets.
_SCALE = ["target_mean", "target_scale"]


class PrivateHeads(PersonalLayers):
    """Personal layers with each client's own scale of targets.

    For clients whose target columns are different quantities. Heads are not averaged. If the module has the method
    ``set_target_statistics`` and the buffers ``target_mean`` and ``target_scale``, these hold the mean and deviation of
    the client's own training targets and stay with it; a column without values keeps 0 and 1.

    Args:
        layers: as for :class:`PersonalLayers`.

    Raises:
        ConfigurationError: at the start of a run, as :class:`PersonalLayers`; the module weights classes over all
            clients, or ``LocalReference`` precedes this callback.
    """

    method_name = "+ private heads"

    def __init__(self, *, layers: list[str] | None = None) -> None:
        super().__init__(layers=["head"] if layers is None else layers)

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        module = trainer.module
        if module.hparams.get("class_weights") == "balanced":
            raise ConfigurationError(
                "PrivateHeads: class_weights='balanced' counts classes over all clients, whose targets differ: use"
                " numbers, or remove it."
            )
        if trainer.federation.client_stores.get("local_reference"):
            raise ConfigurationError(
                "PrivateHeads must precede LocalReference in trainer.callbacks, which needs the clients' scales."
            )
        super().on_fit_start(trainer)
        personal, flat = trainer.federation.personal, trainer.loop.flat
        assert personal is not None
        if not _is_scaled(module):
            return
        for client in trainer.hosted_clients:
            mean, std = client_statistics(trainer.batch_factory, client, trainer.seed)
            flat.load(trainer.shared_model(client))
            module.set_target_statistics(mean.nan_to_num(0.0), torch.where(std.isnan(), 1.0, std))  # type: ignore[operator]
            trainer.client_store(PERSONAL_LAYERS)[client] = personal.extract(flat.collect())

    def names(self, module: nn.Module) -> list[str]:
        return [*super().names(module), *(_SCALE if _is_scaled(module) else ())]


def _is_scaled(module: nn.Module) -> bool:
    regression = hasattr(module, "set_target_statistics") and getattr(module, "task", "regression") == "regression"
    return regression and bool(getattr(module, "hparams", {}).get("standardize_targets", True))
