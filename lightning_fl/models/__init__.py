"""Models that recipes can name. Any LightningModule works as well as these."""

from lightning_fl.models.molecule import MoleculeModel

__all__ = ["MoleculeModel"]
