from types import SimpleNamespace

import pytest
import torch

from lightning_fl.data import ImageFolders
from lightning_fl.data.images.transform import ImageTransform, channel_statistics, crop_at, flip_where

IMAGES = torch.randint(0, 256, (16, 3, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_statistics_are_those_of_the_floats():
    mean, std = channel_statistics(IMAGES)
    values = IMAGES.double() / 255
    torch.testing.assert_close(torch.tensor(mean), values.mean((0, 2, 3)).float())
    torch.testing.assert_close(torch.tensor(std), values.std((0, 2, 3), unbiased=False).float())


def test_statistics_lose_no_digits_and_a_constant_channel_has_deviation_one():
    images = torch.full((2000, 2, 3, 3), 255, dtype=torch.uint8)
    images[0, 1, 0, 0] = 254
    mean, std = channel_statistics(images)
    assert (mean[0], std[0]) == (1.0, 1.0)
    share = 1 / 18000  # one pixel is darker by one level
    assert std[1] == pytest.approx((share * (1 - share)) ** 0.5 / 255, rel=1e-12)


def test_normalised_images_have_mean_zero_and_deviation_one():
    result = ImageTransform(*channel_statistics(IMAGES))(IMAGES, training=False)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.mean((0, 2, 3)), torch.zeros(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(result.std((0, 2, 3), unbiased=False), torch.ones(3))


def test_without_statistics_values_lie_between_zero_and_one():
    before = IMAGES.clone()
    torch.testing.assert_close(ImageTransform(None, None)(IMAGES, training=True), IMAGES / 255)
    assert torch.equal(IMAGES, before)


def test_crop_is_a_window_of_the_bordered_image():
    offsets = torch.stack([torch.arange(16) % 5, torch.arange(16) % 3])
    cropped = crop_at(IMAGES, offsets, padding=2)
    for index, image in enumerate(IMAGES):
        bordered = torch.zeros(3, 10, 10, dtype=torch.uint8)
        bordered[:, 2:8, 2:8] = image
        top, left = offsets[:, index].tolist()
        assert torch.equal(cropped[index], bordered[:, top : top + 6, left : left + 6])
    assert torch.equal(crop_at(IMAGES, torch.full((2, 16), 4)), IMAGES)


def test_flip_mirrors_the_chosen_images():
    chosen = torch.arange(16) % 2 == 0
    flipped = flip_where(IMAGES, chosen)
    assert torch.equal(flipped[1::2], IMAGES[1::2])
    assert torch.equal(flipped[::2], IMAGES[::2].flip(-1))


def test_augmentation_draws_from_the_default_generator_and_only_in_training():
    transform = ImageTransform(None, None, ["crop", "flip"])
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(transform(IMAGES, training=True))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    torch.manual_seed(1)
    offsets, chosen = torch.randint(0, 9, (2, 16)), torch.rand(16) < 0.5
    torch.testing.assert_close(results[0], flip_where(crop_at(IMAGES, offsets), chosen) / 255)
    torch.testing.assert_close(transform(IMAGES, training=False), IMAGES / 255)


def test_a_batch_is_augmented_only_while_it_is_trained_on():
    datamodule = ImageFolders(root="", size=6, normalize=False, augment=["flip"])
    labels = torch.arange(16)
    torch.manual_seed(0)
    images, same = datamodule.on_after_batch_transfer([IMAGES, labels], 0)  # no trainer
    assert same is labels
    torch.testing.assert_close(images, IMAGES / 255)
    for training in (True, False):
        datamodule.trainer = SimpleNamespace(training=training)
        images, _ = datamodule.on_after_batch_transfer([IMAGES, labels], 0)
        assert torch.allclose(images, IMAGES / 255) != training
