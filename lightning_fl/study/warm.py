"""``lightning-fl fit``, imported and with its parser made: what the server holds from which workers are forked."""

from importlib import import_module

from lightning_fl.recipe.parser import make_parser

__all__ = ["PARSER"]

PARSER = make_parser("fit")

# What most runs import when they come to it, here once for all. After the parser, which keeps dependencies' warnings of
# each other quiet while it imports them.
for _name in (
    "lightning_fl.data.molecules.dataset",
    "lightning_fl.data.molecules.standin",
    "lightning_fl.data.tables.dataset",
    "lightning_fl.engine.batches.graph_packs",
    "lightning_fl.models.mpnn",
    "lightning_fl.recipe.run",
    "lightning_fl.trainer.report",
    "sklearn.datasets",
    "torch.utils.tensorboard",
):
    import_module(_name)
