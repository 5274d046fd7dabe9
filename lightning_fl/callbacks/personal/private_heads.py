"""A shared trunk with a private head for every client: clients that measure different targets.

The setting of MELLODDY (Heyndrickx et al.: Cross-pharma Federated Learning at Unprecedented Scale, J. Chem. Inf. Model.
2024, https://doi.org/10.1021/acs.jcim.3c00799): every company has assays of its own, whose heads never leave it, on a
trunk that all train. The personal layers are those of :class:`PersonalLayers`.

Differs from the paper: averages are by samples, as in any federation here, and clients' updates are not hidden.
"""

import torch
from torch import nn

from lightning_fl.callbacks.personal.personal_layers import PersonalLayers
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.probes.statistics import client_statistics
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["PrivateHeads"]

#: The buffers in which a model keeps the scale of its targets.
_SCALE = ["target_mean", "target_scale"]


class PrivateHeads(PersonalLayers):
    """Personal layers, and every client's targets on a scale of their own.

    For clients whose target columns mean different things: column t of one client is another quantity than column t of
    the next. Heads are never averaged, and where the module has the method ``set_target_statistics`` (and the buffers
    ``target_mean`` and ``target_scale``) each client's are the mean and deviation of its own training targets, which
    stay with it. A column without a value keeps 0 and 1.

    Args:
        layers: as of :class:`PersonalLayers`.

    Raises:
        ConfigurationError: at the start of a run: as :class:`PersonalLayers`; the module weighs classes over all
            clients; or ``LocalReference`` is named before it.
    """

    method_name = "+ private heads"

    def __init__(self, *, layers: list[str] | None = None) -> None:
        super().__init__(layers=["head"] if layers is None else layers)

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        """Lay the layers aside, and give every client its scale."""
        module = trainer.module
        if module.hparams.get("class_weights") == "balanced":
            raise ConfigurationError(
                "PrivateHeads: class_weights='balanced' counts classes over all clients, whose targets are different"
                " ones here; give numbers, or leave it out."
            )
        if trainer.federation.client_stores.get("local_reference"):
            raise ConfigurationError(
                "PrivateHeads: LocalReference is named before it and would start without the clients' own scales; name"
                " PrivateHeads first."
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
            trainer.client_store("personal_layers")[client] = personal.extract(flat.collect())

    def names(self, module: nn.Module) -> list[str]:
        """With the scale of the targets, where the module has one."""
        return [*super().names(module), *(_SCALE if _is_scaled(module) else ())]


def _is_scaled(module: nn.Module) -> bool:
    regression = hasattr(module, "set_target_statistics") and getattr(module, "task", "regression") == "regression"
    return regression and bool(getattr(module, "hparams", {}).get("standardize_targets", True))
