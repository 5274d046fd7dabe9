"""Images."""

from typing import Any

import torch
import torchvision
from harness import case
from torch import nn

from public.lit import Lit, draws, load_into, split_loaders, tensors


def _classify(net: Any, batch: Any) -> Any:
    x, y = batch
    return nn.functional.cross_entropy(net(x), y)


def _anomaly_batches(silo: int) -> dict[str, Any]:
    from anomalib.data import ImageBatch, ImageItem

    generator = draws(silo)
    items = [
        ImageItem(
            image=torch.rand(3, 64, 64, generator=generator),
            gt_label=torch.tensor(i % 2),
            gt_mask=torch.zeros(64, 64, dtype=torch.bool),
            image_path=f"{i}.png",
        )
        for i in range(12)
    ]
    return {"train": split_loaders(items, collate_fn=ImageBatch.collate)["train"]}


def _anomalib(name: str, **options: Any) -> dict[str, Any]:
    from anomalib import models

    kind = getattr(models, name)
    quiet = dict.fromkeys(("visualizer", "evaluator", "post_processor"), False)
    return {
        "make": lambda: kind(**options, **quiet, pre_processor=kind.configure_pre_processor((64, 64))),
        "loaders": _anomaly_batches,
        "load": load_into,
    }


@case("Fastflow", "anomalib")
def anomalib_fastflow() -> dict[str, Any]:
    return _anomalib("Fastflow", backbone="resnet18", pre_trained=False, flow_steps=1)


@case("Fre", "anomalib")
def anomalib_fre() -> dict[str, Any]:
    size = {"input_dim": 4096, "latent_dim": 8, "pooling_kernel_size": 2}
    return _anomalib("Fre", backbone="resnet18", pre_trained=False, layer="layer1", **size)


@case("Ganomaly (manual optimisation)", "anomalib")
def anomalib_ganomaly() -> dict[str, Any]:
    return _anomalib("Ganomaly", batch_size=4, n_features=4, latent_vec_size=8)


@case("Padim (a memory of features, no optimiser)", "anomalib", fails="register it with its final shape and dtype")
def anomalib_padim() -> dict[str, Any]:
    return _anomalib("Padim", backbone="resnet18", pre_trained=False, layers=["layer1"], n_features=4)


@case("LinearClassifier", "lightly")
def lightly_linear() -> dict[str, Any]:
    from lightly.utils.benchmarking import LinearClassifier

    class Backbone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 16), nn.BatchNorm1d(16))

        def forward(self, x: Any) -> Any:
            return self.net(x)

    def make() -> Any:
        return LinearClassifier(Backbone(), batch_size_per_device=4, feature_dim=16, num_classes=3, topk=(1,))

    def loaders(silo: int) -> dict[str, Any]:
        found = split_loaders(tensors(silo, (3, 8, 8), classes=3))
        return {"train": found["train"], "val": found["val"]}

    return {"make": make, "loaders": loaders, "load": load_into}


@case("SimCLR", "lightly", wraps=True)
def lightly_simclr() -> dict[str, Any]:
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead

    criterion = NTXentLoss()

    def loss(net: Any, batch: Any) -> Any:
        return criterion(net(batch[0]), net(batch[1]))

    def make() -> Any:
        return Lit(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), SimCLRProjectionHead(288, 16, 8)), loss)

    return {"make": make, "loaders": lambda silo: split_loaders(tensors(silo, (3, 8, 8), (3, 8, 8))), "load": load_into}


@case("DINO (teacher by momentum)", "lightly", wraps=True)
def lightly_dino() -> dict[str, Any]:
    import lightning.pytorch as pl
    from lightly.loss import DINOLoss
    from lightly.models.modules import DINOProjectionHead
    from lightly.models.utils import deactivate_requires_grad, update_momentum

    class DINO(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.student, self.teacher = (nn.Sequential(nn.Flatten(), nn.Linear(192, 16)) for _ in range(2))
            self.head, self.teacher_head = (DINOProjectionHead(16, 8, 4, 8, freeze_last_layer=1) for _ in range(2))
            self.teacher.load_state_dict(self.student.state_dict())
            self.teacher_head.load_state_dict(self.head.state_dict())
            deactivate_requires_grad(self.teacher)
            deactivate_requires_grad(self.teacher_head)
            self.criterion = DINOLoss(output_dim=8, warmup_teacher_temp_epochs=1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            update_momentum(self.student, self.teacher, m=0.99)
            update_momentum(self.head, self.teacher_head, m=0.99)
            with torch.no_grad():
                taught = [self.teacher_head(self.teacher(view)) for view in batch]
            learned = [self.head(self.student(view)) for view in batch]
            return self.criterion(taught, learned, epoch=self.current_epoch)

        def on_after_backward(self) -> None:
            self.head.cancel_last_layer_gradients(current_epoch=self.current_epoch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def loaders(silo: int) -> dict[str, Any]:
        return {"train": split_loaders(tensors(silo, (3, 8, 8), (3, 8, 8)))["train"]}

    return {"make": DINO, "loaders": loaders, "load": load_into}


@case("Unet", "segmentation-models-pytorch", wraps=True)
def segmentation() -> dict[str, Any]:
    import segmentation_models_pytorch as smp

    dice = smp.losses.DiceLoss(smp.losses.BINARY_MODE, from_logits=True)

    def loss(net: Any, batch: Any) -> Any:
        return dice(net(batch["image"]), batch["mask"])

    def loaders(silo: int) -> dict[str, Any]:
        generator = draws(silo)
        samples = [
            {
                "image": torch.randn(3, 32, 32, generator=generator),
                "mask": (torch.rand(1, 32, 32, generator=generator) > 0.5).float(),
                "filename": f"{i}.png",
            }
            for i in range(12)
        ]
        return split_loaders(samples)

    def make() -> Any:
        return Lit(smp.Unet("resnet18", encoder_weights=None, decoder_channels=(16, 8, 8, 8, 8)), loss)

    return {"make": make, "loaders": loaders, "load": load_into}


@case("Faster R-CNN (lists of dicts)", "torchvision", wraps=True)
def detection() -> dict[str, Any]:
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.rpn import AnchorGenerator

    class Backbone(nn.Sequential):
        out_channels = 8

    def make() -> Any:
        net = FasterRCNN(
            Backbone(nn.Conv2d(3, 8, 3, stride=4, padding=1), nn.ReLU()),
            num_classes=3,
            min_size=32,
            max_size=32,
            rpn_anchor_generator=AnchorGenerator(((8, 16),), ((1.0,),)),
            rpn_pre_nms_top_n_train=16,
            rpn_post_nms_top_n_train=8,
            box_roi_pool=torchvision.ops.MultiScaleRoIAlign(["0"], 3, 2),
        )
        return Detector(net, lambda net, batch: sum(net(*batch).values()))

    class Detector(Lit):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            images, _ = batch
            found = self.net(images)
            self.log("val_boxes", float(sum(len(one["boxes"]) for one in found)), batch_size=len(images))

        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.log(
                "test_boxes", float(sum(len(one["boxes"]) for one in self.net(batch[0]))), batch_size=len(batch[0])
            )

    def loaders(silo: int) -> dict[str, Any]:
        generator = draws(silo)
        samples = []
        for index in range(12):
            size = 32 + 4 * (index % 3)
            boxes = torch.rand(1 + index % 2, 2, generator=generator) * 10
            samples.append(
                (
                    torch.rand(3, size, size, generator=generator),
                    {"boxes": torch.cat([boxes, boxes + 12], 1), "labels": torch.ones(len(boxes), dtype=torch.long)},
                )
            )
        return split_loaders(samples, collate_fn=_columns)

    return {"make": make, "loaders": loaders, "load": load_into}


def _columns(samples: Any) -> Any:
    return tuple(list(column) for column in zip(*samples, strict=True))


@case("ViT", "timm", wraps=True)
def timm_vit() -> dict[str, Any]:
    import timm

    def make() -> Any:
        net = timm.create_model(
            "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=12, depth=1, num_heads=2, num_classes=3
        )
        return Lit(net, _classify)

    return {
        "make": make,
        "loaders": lambda silo: split_loaders(tensors(silo, (3, 32, 32), classes=3)),
        "load": load_into,
    }


@case("UNet of volumes (MetaTensor)", "monai", wraps=True)
def monai_unet() -> dict[str, Any]:
    from monai.data import DataLoader as MonaiLoader
    from monai.data import Dataset as MonaiDataset
    from monai.losses import DiceLoss
    from monai.networks.nets import UNet
    from monai.transforms import Compose, EnsureTyped, ScaleIntensityd

    dice = DiceLoss(sigmoid=True)

    def loss(net: Any, batch: Any) -> Any:
        return dice(net(batch["image"]), batch["label"])

    def loaders(silo: int) -> dict[str, Any]:
        generator = draws(silo)
        samples = [
            {
                "image": torch.randn(1, 8, 8, 8, generator=generator),
                "label": (torch.rand(1, 8, 8, 8, generator=generator) > 0.5).float(),
            }
            for _ in range(12)
        ]
        transform = Compose([ScaleIntensityd("image"), EnsureTyped(["image", "label"])])
        return split_loaders(MonaiDataset(samples, transform), kind=MonaiLoader)

    def make() -> Any:
        return Lit(UNet(3, 1, 1, (4, 8), (2,), norm="batch", dropout=0.1), loss)

    return {"make": make, "loaders": loaders, "load": load_into}


@case("UNet2DModel, denoising diffusion", "diffusers", wraps=True)
def diffusion() -> dict[str, Any]:
    from diffusers import DDPMScheduler, UNet2DModel

    noise_schedule = DDPMScheduler(num_train_timesteps=20)

    def loss(net: Any, batch: Any) -> Any:
        (images,) = batch
        noise = torch.randn_like(images)
        steps = torch.randint(20, (len(images),))
        noisy = noise_schedule.add_noise(images, noise, steps)
        return nn.functional.mse_loss(net(noisy, steps, return_dict=False)[0], noise)

    def make() -> Any:
        net = UNet2DModel(
            sample_size=8,
            in_channels=1,
            out_channels=1,
            layers_per_block=1,
            block_out_channels=(8, 16),
            norm_num_groups=4,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            attention_head_dim=8,
        )
        return Lit(net, loss)

    return {"make": make, "loaders": lambda silo: split_loaders(tensors(silo, (1, 8, 8))), "load": load_into}


@case("BasicGAN (manual optimisation, two optimisers)", "lightning", wraps=True)
def gan() -> dict[str, Any]:
    import lightning.pytorch as pl

    class GAN(pl.LightningModule):
        automatic_optimization = False

        def __init__(self) -> None:
            super().__init__()
            self.generator = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.LeakyReLU(0.2), nn.Linear(16, 6))
            self.discriminator = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

        def judge(self, x: Any, real: float) -> Any:
            found = self.discriminator(x)
            return nn.functional.binary_cross_entropy_with_logits(found, torch.full_like(found, real))

        def training_step(self, batch: Any) -> None:
            (x,) = batch
            one, two = self.optimizers()
            made = self.generator(torch.randn(len(x), 4))
            self.toggle_optimizer(one)
            loss = self.judge(made, 1.0)
            self.log("g_loss", loss, prog_bar=True)
            self.manual_backward(loss)
            one.step()
            one.zero_grad()
            self.untoggle_optimizer(one)
            self.toggle_optimizer(two)
            loss = (self.judge(x, 1.0) + self.judge(made.detach(), 0.0)) / 2
            self.log("d_loss", loss, prog_bar=True)
            self.manual_backward(loss)
            two.step()
            two.zero_grad()
            self.untoggle_optimizer(two)

        def configure_optimizers(self) -> Any:
            return [torch.optim.Adam(part.parameters(), 1e-3) for part in (self.generator, self.discriminator)], []

    return {
        "make": GAN,
        "loaders": lambda silo: {"train": split_loaders(tensors(silo, (6,)))["train"]},
        "load": load_into,
    }
