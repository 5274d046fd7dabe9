"""Read one image file."""

from pathlib import Path

from torch import Tensor

from lightning_fl.errors import DataError

__all__ = ["read_image_file"]


def read_image_file(path: str | Path, channels: int, what: str) -> Tensor:
    """An image in any format that Pillow reads, upright as its camera noted.

    Args:
        path: the file.
        channels: 3 for colours, 1 for grey; the image is converted.
        what: what messages call its data set.

    Returns:
        Bytes of shape [channels, H, W].

    Raises:
        DataError: the file is missing, damaged or no image.
    """
    from PIL import Image, ImageOps
    from torchvision.transforms.v2.functional import pil_to_tensor

    try:
        with Image.open(path) as opened:
            return pil_to_tensor(ImageOps.exif_transpose(opened).convert("RGB" if channels == 3 else "L"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # what Pillow raises
        raise DataError(
            f"{what}: {path} cannot be read as an image ({type(error).__name__}: {error}): replace it, or remove it."
        ) from error
