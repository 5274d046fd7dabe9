"""Models that recipes can name. Any LightningModule works as well as these."""

from lightning_fl.models.molecule import MoleculeModel
from lightning_fl.models.networks import build_network
from lightning_fl.models.survival import SurvivalModel
from lightning_fl.models.vision import ClassificationModel

__all__ = ["ClassificationModel", "MoleculeModel", "SurvivalModel", "build_network"]
