# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Looks at the size of images and downloads before they are in memory."""

from io import BytesIO
from typing import TYPE_CHECKING

from PIL import Image, UnidentifiedImageError
from vllm.fixes.limits import limit, too_large

if TYPE_CHECKING:
    import aiohttp

PIXELS = "VLLM_MAX_IMAGE_PIXELS"
MOST_PIXELS = limit(PIXELS, 178_956_970)
"""Twice what Pillow warns of, where it refuses: some models turn that off, for all."""

DOWNLOAD = "VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB"
MOST_DOWNLOAD_MB = limit(DOWNLOAD, 256)
_MB = 1 << 20


def check_image(data: bytes) -> None:
    """Refuses an image of too many pixels before it is decoded, or what is none.

    Raises:
        ValueError: the client gets status 400. Pillow's own text names an address.
    """
    try:
        with Image.open(BytesIO(data)) as image:
            width, height = image.size
    except UnidentifiedImageError:
        raise ValueError("Failed to load image: its format is not known") from None
    except (OSError, Image.DecompressionBombError):
        return  # as upstream tells it
    if MOST_PIXELS > 0 and width * height > MOST_PIXELS:
        raise too_large("image", f"has {width}x{height} pixels", MOST_PIXELS, PIXELS)


async def read_in_limit(response: "aiohttp.ClientResponse") -> bytes:
    """The body of a download, of which no more is read than the limit.

    Raises:
        VLLMValidationError: there is more; the client gets status 400.
    """
    if MOST_DOWNLOAD_MB <= 0:
        return await response.read()
    most = MOST_DOWNLOAD_MB * _MB
    body = bytearray()
    if (response.content_length or 0) <= most:
        async for chunk in response.content.iter_chunked(_MB):
            body += chunk
            if len(body) > most:
                break
        else:
            return bytes(body)
    what = "is larger than a download may be"
    raise too_large("media", what, MOST_DOWNLOAD_MB, DOWNLOAD)
