"""Stand-in images for a first run without a network: scikit-learn's digits, enlarged, turned or rendered differently.

The digits of 8 x 8 pixels are resized to the size of the data set that they replace. With more than ten classes, class
``c`` is the digit ``c % 10`` after ``c // 10`` quarter turns to the left, from class 40 on mirrored, up to eighty
classes. For images with writers, invented writers press more or less hard. As domains, every domain shows the same
digits in another rendering (:data:`RENDERINGS`).
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from lightning_fl.core.errors import DataError
from lightning_fl.core.seeding import generator
from lightning_fl.data.images.dataset import ImageDataset

_DIGITS = 10
#: Most classes that the digits can replace: ten digits in four directions, plain and mirrored.
MAX_CLASSES = 8 * _DIGITS
#: Invented writers of a stand-in.
NUM_WRITERS = 120
_SEED = 1998


def read_digits() -> ImageDataset:
    """Scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, with 17 grey levels spread over 256."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    digits = load_digits()
    return ImageDataset(
        torch.from_numpy(np.rint(digits.images * (255 / 16)).astype(np.uint8))[:, None],
        torch.from_numpy(digits.target),
        classes=[str(label) for label in range(_DIGITS)],
        place="scikit-learn's digits",
    )


def digits_standin(classes: list[str], *, size: int, channels: int, writers: bool = False) -> ImageDataset:
    """Make digits in the shape of another data set, with at most :data:`MAX_CLASSES` classes.

    ``writers`` adds a column ``writer`` of :data:`NUM_WRITERS` invented writers. Like FEMNIST's, they write dark on
    white; each presses differently.
    """
    assert len(classes) <= MAX_CLASSES
    digits = read_digits().converted(size=size, channels=channels)
    images, targets = [], []
    for turns in range(-(-len(classes) // _DIGITS)):
        wanted = digits.targets + turns * _DIGITS < len(classes)
        turned = digits.images[wanted].rot90(turns, (2, 3))
        images.append(turned if turns < 4 else turned.flip(3))
        targets.append(digits.targets[wanted] + turns * _DIGITS)
    made = ImageDataset(torch.cat(images), torch.cat(targets), classes, place="the stand-in digits")
    if not writers:
        return made
    rng = generator(_SEED, "writers")
    writer = torch.randint(NUM_WRITERS, (len(made),), generator=rng)
    pressure = 0.4 + 0.6 * torch.rand(NUM_WRITERS, generator=rng)
    written = 255 - (made.images * pressure[writer, None, None, None]).round().to(torch.uint8)
    return replace(made, images=written, columns={"writer": [f"made_up_{number:03}" for number in writer.tolist()]})


def digits_domain(index: int, *, size: int) -> ImageDataset:
    """Make all digits in the rendering of a domain, given by its number, in colours."""
    if index >= (most := len(RENDERINGS)):
        raise DataError(f"the stand-in has {most} domains ({', '.join(RENDERINGS)}), not {index + 1}: name fewer.")
    name = list(RENDERINGS)[index]
    digits = read_digits().converted(size=size)
    ink = digits.images.float().div(255)  # [n, 1, S, S]
    rendered = RENDERINGS[name](ink, generator(_SEED, "rendering", name))
    images = rendered.expand(-1, 3, -1, -1).mul(255).round().clamp(0, 255).to(torch.uint8)
    return ImageDataset(images, digits.targets, classes=digits.classes, place=f"the stand-in digits, {name}")


def _blurred(ink: Tensor, rng: torch.Generator) -> Tensor:
    """Smooth over a quarter of the width and shift to the right by an eighth."""
    width = ink.shape[-1]
    window = max(3, width // 4) | 1
    return avg_pool2d(ink, window, stride=1, padding=window // 2).roll(width // 8, -1)


def _coloured(ink: Tensor, rng: torch.Generator) -> Tensor:
    bright = 0.5 + 0.5 * torch.rand(len(ink), 3, 1, 1, generator=rng)
    dark = 0.4 * torch.rand(len(ink), 3, 1, 1, generator=rng)
    return dark + (bright - dark) * ink


#: Rendering -> function of grey values [n, 1, S, S] in 0..1 and a generator.
RENDERINGS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "plain": lambda ink, rng: ink,
    "inverted": lambda ink, rng: 1 - ink,
    "on noise": lambda ink, rng: torch.maximum(0.7 * torch.rand(len(ink), 3, *ink.shape[2:], generator=rng), ink),
    "blurred": _blurred,
    "coloured": _coloured,
    "shaded": lambda ink, rng: torch.linspace(0.4, 1.0, ink.shape[-1]) * (1 - ink),  # black, lighter to the right
}
