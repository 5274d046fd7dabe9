"""Personal layers of each client, and private heads with each client's own scale of targets; the rest is shared.

Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers, 2019
(https://arxiv.org/abs/1912.00818), Algorithms 1 and 2 (FedPer). With the normalisation layers it is FedBN (Li et al.:
FedBN, ICLR 2021, https://arxiv.org/abs/2102.07623); with ``HCCT`` it is HCCT-P. Private heads are the setting of
MELLODDY (Heyndrickx et al.: Cross-pharma Federated Learning at Unprecedented Scale, J. Chem. Inf. Model. 2024,
https://doi.org/10.1021/acs.jcim.3c00799): companies have their own assays, whose heads stay private, on a common trunk.

Differs from the papers: optimisers see personal and shared layers alike. For MELLODDY, averages are weighted by
samples, and updates are not encrypted.
"""

from typing import Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import checked_fields
from lightning_fl.engine.federation import PERSONAL_LAYERS
from lightning_fl.engine.probes.statistics import client_statistics
from lightning_fl.runtime.surface import TrainerSurface

#: Buffers with the scale of a model's targets.
_SCALE = ["target_mean", "target_scale"]


@checked_fields
class PersonalLayers(Callback):
    """Excludes layers from averaging; each client keeps its own, for evaluation and export as well.

    A client that has not trained yet uses the initial ones.

    Args:
        layers: names of submodules, parameters or buffers, with wildcards ``*`` and ``?``: ["classifier"], ["*.bn*"].
            "normalization" for all BatchNorm and InstanceNorm layers with parameters or statistics: FedBN.

    Raises:
        ConfigurationError: ``layers`` is empty, matches nothing or everything, or there is no normalisation layer.
    """

    method_name = "+ personal layers"
    role = "personal layers"
    traits = ("personal_layers",)

    layers: list[str] | Literal["normalization"]

    def __post_init__(self) -> None:
        if not self.layers:
            raise ConfigurationError("PersonalLayers.layers=[]: name at least one layer, such as 'classifier'.")
        if self.layers == "normalization":
            self.method_name = "FedBN"

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        names = self.names(trainer.module)
        try:
            trainer.keep_local(names)
        except ConfigurationError as error:
            raise ConfigurationError(f"PersonalLayers.layers={self.layers}: {error}") from error

    def evaluated(self, trainer: TrainerSurface, model: str) -> str:
        return f"{model}, with each client's own layers"

    def names(self, module: nn.Module) -> list[str]:
        if self.layers != "normalization":
            return list(self.layers)
        norms = [(name, part) for name, part in module.named_modules() if isinstance(part, _NormBase)]
        found = [name for name, part in norms if part.state_dict()]
        if not found:
            what = f"{type(module).__name__} has no BatchNorm or InstanceNorm layer with parameters or statistics"
            raise ConfigurationError(f"PersonalLayers.layers='normalization': {what}. Name the layers instead.")
        return found


class PrivateHeads(PersonalLayers):
    """Personal layers with each client's own scale of targets, as in MELLODDY.

    For clients whose target columns are different quantities. Heads are not averaged. If the module has the method
    ``set_target_statistics`` and the buffers ``target_mean`` and ``target_scale``, these hold the mean and deviation of
    the client's own training targets and stay with it; a column without values keeps 0 and 1.

    Args:
        layers: as for :class:`PersonalLayers`; ``None`` for ["head"].

    Raises:
        ConfigurationError: as :class:`PersonalLayers`, or the module weights classes over all clients.
    """

    method_name = "+ private heads"

    def __init__(self, *, layers: list[str] | None = None) -> None:
        super().__init__(layers=["head"] if layers is None else layers)

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        module = trainer.module
        if module.hparams.get("class_weights") == "balanced":
            raise ConfigurationError("PrivateHeads: class_weights='balanced' counts over all clients: omit it.")
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
