"""Satellite images."""

from typing import Any

import torch
from harness import case
from torch import nn

from public.lit import draws, load_into, split_loaders, tensors


@case("ClassificationTask", "torchgeo")
def torchgeo_classification() -> dict[str, Any]:
    from torchgeo.trainers import ClassificationTask

    def loaders(silo: int) -> dict[str, Any]:
        return split_loaders([{"image": x, "label": y} for x, y in tensors(silo, (3, 32, 32), classes=4, count=16)])

    return {
        "make": lambda: ClassificationTask(model="resnet18", weights=None, in_channels=3, num_classes=4, patience=1),
        "loaders": loaders,
    }


@case("SemanticSegmentationTask", "torchgeo")
def torchgeo_segmentation() -> dict[str, Any]:
    from torchgeo.trainers import SemanticSegmentationTask

    def loaders(silo: int) -> dict[str, Any]:
        generator = draws(silo)
        return split_loaders(
            [
                {
                    "image": torch.randn(3, 32, 32, generator=generator),
                    "mask": torch.randint(2, (32, 32), generator=generator),
                }
                for _ in range(12)
            ]
        )

    return {
        "make": lambda: SemanticSegmentationTask(
            model="unet", backbone="resnet18", weights=None, in_channels=3, num_classes=2, task="multiclass"
        ),
        "loaders": loaders,
    }


@case("RegressionTask", "torchgeo")
def torchgeo_regression() -> dict[str, Any]:
    from torchgeo.trainers import RegressionTask

    def loaders(silo: int) -> dict[str, Any]:
        return split_loaders([{"image": x, "label": y[0]} for x, y in tensors(silo, (3, 32, 32), (1,), count=16)])

    return {"make": lambda: RegressionTask(model="resnet18", in_channels=3, patience=1), "loaders": loaders}


def _contrast(name: str, **options: Any) -> dict[str, Any]:
    import torchgeo.trainers

    def loaders(silo: int) -> dict[str, Any]:
        return {"train": split_loaders([{"image": x} for (x,) in tensors(silo, (3, 32, 32), count=16)])["train"]}

    def make() -> Any:
        return getattr(torchgeo.trainers, name)(model="resnet18", in_channels=3, **options)

    return {"make": make, "loaders": loaders, "load": load_into}


def _noise() -> nn.Module:
    return nn.Sequential(nn.Dropout(0.1))


@case("BYOLTask (teacher by momentum)", "torchgeo")
def torchgeo_byol() -> dict[str, Any]:
    return _contrast("BYOLTask")


@case("MoCoTask (teacher by momentum)", "torchgeo")
def torchgeo_moco() -> dict[str, Any]:
    return _contrast("MoCoTask", version=2, memory_bank_size=16, augmentation1=_noise(), augmentation2=_noise())


@case("SimCLRTask", "torchgeo")
def torchgeo_simclr() -> dict[str, Any]:
    return _contrast("SimCLRTask", augmentations=_noise(), size=32)
