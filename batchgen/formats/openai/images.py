"""Images in a message's content: data URLs of files of a few known kinds."""

import base64
import binascii
import re

from batchgen.domain.errors import InvalidRequest

_DATA_URL = re.compile(r"data:(?P<type>[\w.+/-]+);base64,(?P<data>[A-Za-z0-9+/=\s]*)", re.ASCII)
_KINDS = {
    "PNG": b"\x89PNG\r\n\x1a\n",
    "JPEG": b"\xff\xd8\xff",
    "GIF": b"GIF8",
    "WebP": b"RIFF",
    "BMP": b"BM",
}
MOST_IMAGE_BYTES = 20 << 20
"""Of one image's file."""


def image_file(url: str, place: str) -> bytes:
    """The file in a data URL. Raises InvalidRequest naming the place."""
    param = f"{place}.image_url"
    if not url.startswith("data:"):
        raise InvalidRequest(
            f"Invalid '{param}': images are taken as data URLs (data:image/png;base64,...) only; "
            "this service fetches nothing from other places.",
            code="unsupported_value",
            param=param,
        )
    found = _DATA_URL.fullmatch(url)
    if found is None:
        raise InvalidRequest(
            f"Invalid '{param}': expected data:image/...;base64, and base64 after it.", param=param
        )
    try:
        data = base64.b64decode("".join(found["data"].split()), validate=True)
    except binascii.Error as error:
        raise InvalidRequest(f"Invalid '{param}': bad base64 ({error}).", param=param) from None
    if len(data) > MOST_IMAGE_BYTES:
        raise InvalidRequest(
            f"Invalid '{param}': the image has {len(data)} bytes, at most {MOST_IMAGE_BYTES} are "
            "taken.",
            param=param,
        )
    if not data.startswith(tuple(_KINDS.values())):
        raise InvalidRequest(
            f"Invalid '{param}': no image of a known kind ({', '.join(_KINDS)}).", param=param
        )
    return data
