import pkgutil
import sys
from importlib import import_module

import pytest
from lightning.pytorch import LightningModule
from PIL import Image
from processes import run

from lightning_fl.callbacks import BiddingPolicy, Callback
from lightning_fl.data import FederatedDataModule, Partitioner
from lightning_fl.recipe.classes import subclasses
from lightning_fl.strategies import FederatedStrategy

BASES = {
    "callbacks": (BiddingPolicy, Callback),
    "data": (FederatedDataModule, Partitioner),
    "models": (LightningModule,),
    "strategies": (FederatedStrategy,),
}
#: Not named in recipes: bases of callbacks and models, and the partition that data of domains bring along.
UNNAMED = {"DomainPartition", "FigureCallback", "HeldOutFigure", "Model", "PersonalMixtures"}


def test_every_class_that_a_recipe_may_name_is_exported_by_its_package():
    for name, bases in BASES.items():
        package = import_module(f"lightning_fl.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)
        found = {cls for base in bases for cls in subclasses(base) if cls.__module__.startswith(f"{package.__name__}.")}
        assert found
        assert {cls.__name__ for cls in found} - UNNAMED <= set(package.__all__)


#: Exits with the names of the heavy libraries that the run has imported, so that a failure shows them.
RUN = """
import sys
from lightning_fl.cli import main

code = main(sys.argv[1:])
heavy = ("pandas", "rdkit", "requests", "sklearn", "tensorboard", "torch_geometric")
sys.exit(code or ", ".join(name for name in heavy if name in sys.modules) or 0)
"""


@pytest.mark.processes
@pytest.mark.slow
def test_a_run_on_images_imports_no_library_that_it_does_not_use(tmp_path):
    for silo in ("north", "south"):
        for label in ("cat", "dog"):
            folder = tmp_path / "silos" / silo / label
            folder.mkdir(parents=True)
            for number in range(5):
                Image.new("L", (4, 4), number).save(folder / f"{number}.png")
    words = ["fit", "--model", "ClassificationModel", "--model.network", "mlp", "--model.hidden_sizes", "[4]"]
    words += ["--model.in_shape", "[1, 4, 4]", "--model.num_classes", "2", "--data", "ImageFolders"]
    words += ["--data.root", "silos", "--data.size", "4", "--data.channels", "1"]
    words += ["--trainer.max_rounds", "1", "--trainer.local_steps", "1", "--trainer.logger", "false"]
    words += ["--trainer.accelerator", "cpu", "--trainer.devices", "1"]
    ended = run(sys.executable, "-c", RUN, *words)
    assert ended.code == 0, ended.err
