"""Preloaded ``lightning-fl fit`` with its parser, from which workers are forked."""

import atexit
import gc
import os
from importlib import import_module

os.environ["OMP_NUM_THREADS"] = "1"  # of a worker; before torch is imported

from lightning_fl.core.lazy import import_torchmetrics

gc.disable()
import_torchmetrics()

PARSER = import_module("lightning_fl.recipe.parser").make_parser("fit")

# Modules that most runs import later. After the parser, which suppresses warnings while it imports dependencies.
for _name in (
    *("lightning_fl.callbacks.figures.plots.run", "lightning_fl.data.molecules.dataset"),
    *("lightning_fl.data.molecules.standin", "lightning_fl.data.tables.dataset"),
    *("lightning_fl.engine.batches.graph_packs", "lightning_fl.models.bond_encoders", "lightning_fl.recipe.run"),
    *("lightning_fl.trainer.report", "sklearn.datasets", "torch.utils.tensorboard"),
):
    import_module(_name)

gc.freeze()  # a worker that looked through all this for garbage would copy it
atexit.register(gc.unfreeze)  # libraries complain about instances that are left when Python ends
gc.enable()
