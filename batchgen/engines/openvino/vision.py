"""Images for models that see: from encoded files to the tensors that the pipeline takes."""

import io
import warnings

import numpy as np
import openvino as ov
from PIL import Image

IMAGE_TAG = "<ov_genai_image_{}>"
"""What the pipeline replaces by the model's own marks of its images."""
MOST_PIXELS = 50_000_000
"""Of one image, unpacked."""


def image_tensor(file: bytes) -> ov.Tensor:
    """RGB, uint8, [1, height, width, 3]. Raises ValueError where it is no image, or too large."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(file)) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise ValueError(
                        f"an image of {image.width} x {image.height} pixels is too large; at most "
                        f"{MOST_PIXELS:,} are taken"
                    )
                pixels = np.asarray(image.convert("RGB"), dtype=np.uint8)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"an image cannot be read: {error}") from error
    return ov.Tensor(np.ascontiguousarray(pixels[np.newaxis]))
