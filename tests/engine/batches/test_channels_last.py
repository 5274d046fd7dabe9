import math
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule
from rounding import assert_equal_up_to_rounding
from tiny import quiet_trainer, same_bits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lightning_fl import FederatedDataModule, FederatedTrainer, TrainingError

CHANNELS, SIDE, SAMPLES = 3, 8, 14


def drawn_images(client: int, *, dims: int = 2) -> TensorDataset:
    draws = torch.Generator().manual_seed(client)
    images = torch.randn(SAMPLES, CHANNELS, *[SIDE] * dims, generator=draws, dtype=torch.float64)
    return TensorDataset(images, torch.randint(0, 4, (SAMPLES,), generator=draws))


class OneByOne(Dataset):
    """Samples that no pack can hold: dictionaries."""

    def __init__(self, held: TensorDataset) -> None:
        self.held = held

    def __len__(self) -> int:
        return len(self.held)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        image, label = self.held[index]
        return {"image": image, "label": label}


class TwoClients(FederatedDataModule):
    def __init__(self, kind: str = "packed", dims: int = 2, **arguments) -> None:
        super().__init__(batch_size=4, **arguments)
        self.kind, self.dims = kind, dims

    @property
    def num_clients(self) -> int:
        return 2

    def client_data(self, client, split):
        if split == "test":
            return None
        data = drawn_images(client, dims=self.dims)
        if self.kind == "packed":
            return data
        return OneByOne(data) if self.kind == "one by one" else DataLoader(OneByOne(data), batch_size=4, shuffle=True)


class Convolving(LightningModule):
    """Remembers the images that it was given."""

    def __init__(self, dims: int = 2, flatten: bool = True) -> None:
        super().__init__()
        torch.manual_seed(3)
        convolution, pooling = (nn.Conv2d, nn.MaxPool2d) if dims == 2 else (nn.Conv3d, nn.MaxPool3d)
        self.features = nn.Sequential(convolution(CHANNELS, 6, 3), nn.ReLU(), pooling(2))
        self.head = nn.Linear(6 * 3**dims, 4)
        self.double()
        self.flatten = flatten
        self.given: list[Tensor] = []

    def loss(self, batch) -> Tensor:
        images, labels = (batch["image"], batch["label"]) if isinstance(batch, dict) else batch
        self.given.append(images)
        features = self.features(images)
        return nn.functional.cross_entropy(
            self.head(features.flatten(1) if self.flatten else features.view(len(images), -1)), labels
        )

    def training_step(self, batch, batch_idx: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch, batch_idx: int) -> None:
        self.log("val/loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def trained(folder: Path, data: TwoClients, module: Convolving, **settings) -> FederatedTrainer:
    settings = {"precision": "64", "max_rounds": 3, **settings}
    ckpt_path = settings.pop("ckpt_path", None)
    trainer = quiet_trainer(default_root_dir=folder / "runs", seed=2, enable_checkpointing=True, **settings)
    trainer.fit(module, data, ckpt_path=ckpt_path)
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dims", "kind", "shuffle"),
    [
        *((2, "packed", shuffle) for shuffle in (False, True)),
        *((2, "one by one", shuffle) for shuffle in (False, True)),
        (2, "loader", True),
        *((3, "packed", shuffle) for shuffle in (False, True)),
        (3, "one by one", False),
    ],
)
def test_images_come_channels_last_with_the_same_results(tmp_path, dims, kind, shuffle):
    plain, other = Convolving(dims), Convolving(dims)
    expected = trained(tmp_path, TwoClients(kind, dims, shuffle=shuffle), plain)
    got = trained(tmp_path, TwoClients(kind, dims, shuffle=shuffle), other, channels_last=True)
    layout = torch.channels_last if dims == 2 else torch.channels_last_3d
    assert len(other.given) == len(plain.given) > 0
    for ours, theirs in zip(other.given, plain.given, strict=True):
        assert torch.equal(ours, theirs)
        assert theirs.is_contiguous()
        assert ours.is_contiguous(memory_format=layout)
    for ours, theirs in zip(other.parameters(), plain.parameters(), strict=True):
        assert ours.is_contiguous()
        assert_equal_up_to_rounding(ours, theirs, steps=3 * 4, growth=1e3)
    assert got.metrics["val"]["val/loss"].mean == pytest.approx(expected.metrics["val"]["val/loss"].mean, rel=1e-10)


@pytest.mark.slow
def test_a_view_across_channels_is_refused_in_torchs_words(tmp_path):
    trained(tmp_path, TwoClients(), Convolving(flatten=False))
    with pytest.raises(TrainingError, match=r"view size is not compatible.*reshape.*trainer.channels_last"):
        trained(tmp_path, TwoClients(), Convolving(flatten=False), channels_last=True)


class FloatClients(TwoClients):
    def client_data(self, client, split):
        data = super().client_data(client, split)
        return data and TensorDataset(data.tensors[0].float(), data.tensors[1])


class InFloats(Convolving):
    """Float32, with draws and statistics; knows in which formats it got the images of training and validation."""

    def __init__(self, *, flatten: bool = True, width: int = 6) -> None:
        super().__init__(flatten=flatten)
        self.features = nn.Sequential(
            *(nn.Conv2d(CHANNELS, width, 3), nn.BatchNorm2d(width), nn.Dropout(0.2), nn.Conv2d(width, 6, 1)),
            nn.MaxPool2d(2),
        )
        self.float()
        self.formats: set[tuple[bool, bool]] = set()

    def loss(self, batch) -> Tensor:
        self.formats.add((self.training, batch[0].is_contiguous(memory_format=torch.channels_last)))
        return super().loss(batch)


def format_in_record(run: FederatedTrainer) -> str:
    last = Path(run.log_dir) / "checkpoints" / "last.ckpt"
    return torch.load(last, weights_only=True)["recipe"]["trainer.channels_last"]


@pytest.mark.parametrize(
    ("arguments", "settings", "converts"),
    [
        ({}, {}, True),
        ({"width": 5000}, {}, False),  # 135,000 weights
        ({"flatten": False}, {}, False),  # its view fails with channels-last images
        ({}, {"channels_last": False}, False),
    ],
)
def test_by_default_training_is_channels_last_where_it_gains_and_works(tmp_path, arguments, settings, converts):
    module = InFloats(**arguments)
    run = trained(tmp_path, FloatClients(), module, precision="32", max_rounds=1, **settings)
    assert module.formats == {(True, converts), (False, False)}
    assert format_in_record(run) == str(converts)


def test_a_module_that_does_not_work_with_channels_last_has_the_bits_of_plain_images(tmp_path):
    runs = []
    for setting in ("auto", False):
        module = InFloats(flatten=False)
        trained(tmp_path, FloatClients(), module, precision="32", channels_last=setting, max_rounds=2)
        runs.append([*module.state_dict().values(), *module.given])
    assert same_bits(*runs)


@pytest.mark.slow
def test_a_resumed_run_keeps_the_memory_format(tmp_path):
    for before in (True, False):
        first = trained(tmp_path, FloatClients(), InFloats(), precision="32", channels_last=before, max_rounds=1)
        module, last = InFloats(), Path(first.log_dir) / "checkpoints" / "last.ckpt"
        resumed = trained(tmp_path, FloatClients(), module, precision="32", ckpt_path=last, max_rounds=2)
        assert module.formats == {(True, before), (False, False)}
        assert format_in_record(resumed) == str(before)
        assert not resumed.differs


class FailsForOne(Convolving):
    """The second client's steps fail as they are told to."""

    def __init__(self, failure: str) -> None:
        super().__init__()
        self.failure = failure

    def training_step(self, batch, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if self.trainer.client == 0:
            return loss
        if self.failure == "loss":
            return loss * math.nan
        raise ValueError(self.failure)


VIEW = "view size is not compatible with input tensor's size and stride"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failure", "channels_last", "blamed"),
    [("loss", True, False), ("no such thing", True, False), (VIEW, True, True), (VIEW, False, False)],
)
@pytest.mark.filterwarnings("ignore:.*left out of.*")
def test_the_layout_is_blamed_for_views_across_it_and_nothing_else(tmp_path, failure, channels_last, blamed):
    settings = {"channels_last": channels_last, "on_client_error": "skip"}
    run = trained(tmp_path, TwoClients(), FailsForOne(failure), **settings)
    assert run.client_reports[0].error is None
    assert ("is nan" if failure == "loss" else failure) in run.client_reports[1].error
    assert ("trainer.channels_last" in run.client_reports[1].error) == blamed
