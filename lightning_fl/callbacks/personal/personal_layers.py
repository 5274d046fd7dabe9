"""Personal layers of each client; the other layers are shared.

Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers, 2019
(https://arxiv.org/abs/1912.00818), Algorithms 1 and 2 (FedPer). With the normalisation layers it is FedBN (Li et al.:
FedBN, ICLR 2021, https://arxiv.org/abs/2102.07623); with ``HCCT`` it is HCCT-P.

Differs from the papers: nothing. Optimisers see personal and shared layers alike.
"""

from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import checked_fields
from lightning_fl.runtime.surface import TrainerSurface


@checked_fields
class PersonalLayers(Callback):
    """Excludes layers from averaging; each client keeps its own, for evaluation and export as well.

    A client that has not trained yet uses the initial ones.

    Args:
        layers: names of submodules, parameters or buffers, with wildcards ``*`` and ``?``: ["classifier"], ["*.bn*"].
            "normalization" for all BatchNorm and InstanceNorm layers with parameters or statistics: FedBN.

    Raises:
        ConfigurationError: no layers; at the start of a run, a name matches nothing or everything, or there is no
            normalisation layer.
    """

    method_name = "+ personal layers"

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
            raise ConfigurationError(
                f"PersonalLayers.layers='normalization': {type(module).__name__} has no BatchNorm or InstanceNorm layer"
                " with parameters or statistics. Name the personal layers instead."
            )
        return found
