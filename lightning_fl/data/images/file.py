"""Reading of one image file."""

from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from lightning_fl.core.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["read_image_file"]


def read_image_file(path: str | Path, channels: int, what: str) -> Tensor:
    """Read an image in any format of Pillow, upright according to its camera's note.

    Args:
        path: the file.
        channels: 3 for colours, 1 for grey; the image is converted.
        what: name of its data set, for messages.

    Returns:
        Bytes of shape [channels, H, W].

    Raises:
        DataError: the file is missing, damaged, not an image, holds several, or has values that are not bytes.
    """
    from PIL import Image, ImageOps
    from torchvision.transforms.v2.functional import pil_to_tensor

    try:
        with Image.open(path) as opened:
            _check_kind(opened)
            return pil_to_tensor(ImageOps.exif_transpose(opened).convert("RGB" if channels == 3 else "L"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # what Pillow raises
        raise DataError(
            f"{what}: {path} cannot be read as an image ({type(error).__name__}: {error}): replace or remove it."
        ) from error


def _check_kind(opened: "Image.Image") -> None:
    # Pillow clips larger values at 255, and reads only the first of several pictures; MPO is a camera's JPEG.
    if opened.mode.startswith(("I", "F")):
        raise ValueError(f"its values are not bytes but of Pillow's mode {opened.mode}; convert them to 0..255")
    if getattr(opened, "is_animated", False) and opened.format != "MPO":
        raise ValueError(f"it holds {getattr(opened, 'n_frames', 'several')} pictures")
