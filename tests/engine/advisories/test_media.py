"""Images, audio and downloads that are too large are not taken into memory."""

import asyncio
import contextvars
from io import BytesIO
from types import SimpleNamespace

import pytest
import soundfile
from aiohttp import web
from PIL import Image
from vllm.connections import HTTPConnection
from vllm.exceptions import VLLMValidationError
from vllm.fixes import media
from vllm.fixes.media import DecodedAudio, check_upload
from vllm.multimodal.media.audio import AudioMediaIO, load_audio_pyav
from vllm.multimodal.media.image import ImageMediaIO


def test_an_image_is_refused_by_its_size_and_without_an_address(monkeypatch):
    """GHSA-mm38-5g96-7j6x, GHSA-hgg8-fqqc-vfmw"""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    monkeypatch.setattr(media, "MOST_PIXELS", 10_000)
    for side, refused in ((100, False), (101, True)):
        buffer = BytesIO()
        Image.new("RGB", (side, side)).save(buffer, "PNG")
        if refused:
            with pytest.raises(VLLMValidationError, match="VLLM_MAX_IMAGE_PIXELS"):
                ImageMediaIO().load_bytes(buffer.getvalue())
        else:
            ImageMediaIO().load_bytes(buffer.getvalue())
    with pytest.raises(ValueError, match="Failed to load image") as error:
        ImageMediaIO().load_bytes(b"no image")
    assert "0x" not in str(error.value)


@pytest.mark.parametrize("says", [True, False])
def test_no_more_of_a_download_is_read_than_the_limit(monkeypatch, says):
    """GHSA-p6g9-7v3x-m8mv"""
    monkeypatch.setattr(media, "MOST_DOWNLOAD_MB", 1)
    size = 1 << 20

    async def serve(request):
        answer = web.StreamResponse()
        wanted = size + int(request.query["more"])
        if says:
            answer.content_length = wanted
        await answer.prepare(request)
        await answer.write(b"x" * wanted)
        return answer

    async def ask():
        app = web.Application()
        app.router.add_get("/", serve)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0]
        connection = HTTPConnection(reuse_client=False)
        try:
            url = f"http://{host}:{port}/?more="
            assert len(await connection.async_get_bytes(f"{url}0")) == size
            with pytest.raises(VLLMValidationError, match="DOWNLOAD_SIZE_MB"):
                await connection.async_get_bytes(f"{url}1")
        finally:
            await connection._async_client.close()
            await runner.cleanup()

    asyncio.run(ask())


def test_a_clip_of_audio_has_the_size_of_an_upload_at_most(monkeypatch):
    """GHSA-jcq2-4gch-5qhf"""
    monkeypatch.setattr(media, "MOST_UPLOAD_MB", 1)
    with pytest.raises(VLLMValidationError, match="CLIP_FILESIZE_MB"):
        AudioMediaIO().load_bytes(bytes(2**20 + 1))


@pytest.mark.parametrize("decoder", ["soundfile", "av"])
def test_no_more_audio_is_decoded_than_the_limits(monkeypatch, decoder):
    """GHSA-6pr9-rp53-2pmc, GHSA-99f2-hwrc-gvq8"""
    buffer = BytesIO()
    soundfile.write(buffer, [0.0] * 24_000, 8_000, format="FLAC")

    def load():
        buffer.seek(0)
        if decoder == "av":
            return load_audio_pyav(buffer, sr=None)
        return AudioMediaIO().load_bytes(buffer.getvalue())

    assert len(load()[0]) == 24_000
    for name, most in (("MOST_SECONDS", 2), ("MOST_AUDIO", 24_000 * 4 - 1)):
        with monkeypatch.context() as patched:
            patched.setattr(media, name, most)
            with pytest.raises(VLLMValidationError, match="VLLM_MAX_AUDIO_DECODE"):
                load()


def test_an_upload_is_refused_before_it_is_read():
    """GHSA-v82g-2437-67m2"""
    from vllm.entrypoints.speech_to_text.transcription import api_router

    file = SimpleNamespace(size=26 << 20)  # without a method to read it
    app = SimpleNamespace(state=SimpleNamespace(openai_serving_transcription=object()))
    raw = SimpleNamespace(app=app)
    create = api_router.create_transcriptions
    while hasattr(create, "__wrapped__"):
        create = create.__wrapped__
    with pytest.raises(VLLMValidationError, match="CLIP_FILESIZE_MB"):
        asyncio.run(create(raw, SimpleNamespace(file=file)))


def test_speech_may_take_longer_than_other_audio_and_decode_to_more(monkeypatch):
    """It is cut into chunks. No other request is taken for speech meanwhile."""
    monkeypatch.setattr(media, "MOST_SECONDS", 2)
    monkeypatch.setattr(media, "MOST_AUDIO", 4 * 8_000 * 3)
    speech = contextvars.copy_context()
    speech.run(check_upload, SimpleNamespace(size=1))
    speech.run(DecodedAudio(8_000).add, 8_000 * 3, 4)
    with pytest.raises(VLLMValidationError, match="DECODE_BYTES"):
        speech.run(DecodedAudio(8_000).add, 8_000 * 3 + 1, 4)
    with pytest.raises(VLLMValidationError, match="DURATION"):
        DecodedAudio(8_000).add(8_000 * 3, 1)
