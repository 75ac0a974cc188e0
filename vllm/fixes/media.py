# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Looks at the size of images and downloads before they are in memory.

For what is refused the client gets status 400.
"""

from contextvars import ContextVar
from io import BytesIO
from typing import TYPE_CHECKING, Any

from PIL import Image, UnidentifiedImageError
from vllm.fixes.limits import limit, too_large

if TYPE_CHECKING:
    import aiohttp

PIXELS = "VLLM_MAX_IMAGE_PIXELS"
MOST_PIXELS = limit(PIXELS, 178_956_970)
"""At which Pillow itself refuses. Some models turn that off for the whole process."""

DOWNLOAD = "VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB"
MOST_DOWNLOAD_MB = limit(DOWNLOAD, 256)
_MB = 1 << 20

SPEECH = 4
"""Decoded speech may have so many times `MOST_AUDIO`, which is the most that an upload
decodes to at usual bit rates, and any duration, as it is cut into chunks."""
_is_speech = ContextVar("is_speech", default=False)

DURATION = "VLLM_MAX_AUDIO_DECODE_DURATION_S"
MOST_SECONDS = limit(DURATION, 600)

AUDIO = "VLLM_MAX_AUDIO_DECODE_BYTES"
MOST_AUDIO = limit(AUDIO, 256 * _MB)
"""Bytes of float32, of all channels."""

UPLOAD = "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB"
MOST_UPLOAD_MB = limit(UPLOAD, 25)
"""Upstream's own limit, which it looks at when it has read the upload."""


def check_image(data: bytes) -> None:
    """Refuses an image of too many pixels before it is decoded, or what is none."""
    try:
        with Image.open(BytesIO(data)) as image:
            width, height = image.size
    except UnidentifiedImageError:
        # Pillow's own text names an address.
        raise ValueError("Failed to load image: its format is not known") from None
    except (OSError, Image.DecompressionBombError):
        return  # as upstream tells it
    if MOST_PIXELS > 0 and width * height > MOST_PIXELS:
        raise too_large("image", f"has {width}x{height} pixels", MOST_PIXELS, PIXELS)


async def read_in_limit(response: "aiohttp.ClientResponse") -> bytes:
    """Reads the body of a download, and no more of it than the limit."""
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


def check_upload(file: Any) -> None:
    """Refuses an upload of audio that is larger than the limit before it is read.

    What the same request decodes is speech.
    """
    _is_speech.set(True)
    if MOST_UPLOAD_MB > 0 and (file.size or 0) > MOST_UPLOAD_MB * _MB:
        raise too_large("file", "is too large", MOST_UPLOAD_MB, UPLOAD)


def check_clip(data: bytes) -> None:
    """Refuses a clip of audio that is larger than an upload may be."""
    if 0 < MOST_UPLOAD_MB * _MB < len(data):
        raise too_large("audio", "is too large", MOST_UPLOAD_MB, UPLOAD)


class DecodedAudio:
    """Counts what is decoded of one audio, of so many samples a second."""

    def __init__(self, rate: float) -> None:
        self._rate, self._samples = rate, 0

    def add(self, samples: int, channels: int) -> None:
        self._samples += samples
        is_speech = _is_speech.get()
        if 0 < MOST_SECONDS * self._rate < self._samples and not is_speech:
            raise too_large("audio", "is too long", MOST_SECONDS, DURATION)
        most = MOST_AUDIO * (SPEECH if is_speech else 1)
        if 0 < most < self._samples * channels * 4:
            raise too_large("audio", "decodes to too much", most, AUDIO)


def count_soundfile(file: Any) -> None:
    """Looks at the header of an open `soundfile.SoundFile`, which decodes no more."""
    DecodedAudio(file.samplerate).add(file.frames, file.channels)
