"""Images for models that see: from encoded files to the tensors that the pipeline takes."""

import io
import warnings
from collections.abc import Sequence

import numpy as np
import openvino as ov
from PIL import Image, UnidentifiedImageError

IMAGE_TAG = "<ov_genai_image_{}>"
"""What the pipeline replaces by the model's own marks of its images."""
MOST_PIXELS = 50_000_000
"""Of one image, unpacked."""
MOST_PIXELS_TOGETHER = 100_000_000
"""Of all images of one request: a few kilobytes may unpack to the most of one."""
_KINDS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


def image_tensors(files: Sequence[bytes]) -> list[ov.Tensor]:
    """RGB, uint8, [1, height, width, 3] each. Raises ValueError where one is no image, or they are
    too large; none is unpacked then.
    """
    images = [_opened(file) for file in files]
    for image in images:
        if image.width * image.height > MOST_PIXELS:
            raise ValueError(
                f"an image of {image.width} x {image.height} pixels is too large; at most "
                f"{MOST_PIXELS:,} are taken"
            )
    pixels = sum(image.width * image.height for image in images)
    if pixels > MOST_PIXELS_TOGETHER:
        raise ValueError(
            f"the images have {pixels:,} pixels together; at most {MOST_PIXELS_TOGETHER:,} are "
            "taken in one request: make them smaller, or ask in several"
        )
    return [_unpacked(image) for image in images]


def _opened(file: bytes) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            return Image.open(io.BytesIO(file), formats=_KINDS)
    except Exception as error:
        raise _unreadable(error) from error


def _unpacked(image: Image.Image) -> ov.Tensor:
    try:
        with image:
            pixels = np.asarray(image.convert("RGB"), dtype=np.uint8)
    except Exception as error:
        raise _unreadable(error) from error
    return ov.Tensor(np.ascontiguousarray(pixels[np.newaxis]))


def _unreadable(error: Exception) -> ValueError:
    """Decoders raise anything that broken data leads them to."""
    if isinstance(error, UnidentifiedImageError):
        return ValueError("an image cannot be read: its file is broken, or of another kind")
    return ValueError(f"an image cannot be read: {str(error) or type(error).__name__}")
