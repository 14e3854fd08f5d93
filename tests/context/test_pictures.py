"""Pictures, audio and files: read from a few bytes, priced by family, bounded whatever they claim."""

import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.conversation import Media
from proxy.context.pictures import ASSUMED_SIZE, bare_name, dimensions, image_tokens, media_tokens

MODELS = (
    "gpt-4o",
    "gpt-4o-mini",
    "gpt-4.1-mini",
    "gpt-5",
    "gpt-5.4",
    "o3",
    "claude-sonnet-4-5",
    "claude-opus-4-7",
    "gemini-2.5-pro",
    "qwen2.5-vl-7b",
    "qwen3-vl",
    "gemma-3-27b",
    "someone/else",
    "",
)


def uri(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIB", 13, b"IHDR", width, height, 8) + b"\0" * 40


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0" * 40


def jpeg(width: int, height: int, before: int = 0, start_of_frame: int = 0xC0) -> bytes:
    """With so many application segments of the greatest length before the frame, as a profile makes them."""
    head = b"\xff\xd8" + b"".join(
        b"\xff\xe2" + struct.pack(">H", 65_535) + b"\x11" * 65_533 for _ in range(before)
    )
    tables = b"\xff\xdb" + struct.pack(">H", 67) + b"\x01" * 65
    frame = bytes((0xFF, start_of_frame)) + struct.pack(">HBHHB", 17, 8, height, width, 3) + b"\0" * 9
    return head + tables + frame + b"\xff\xda\0\x0c" + b"\0" * 40


def webp_lossy(width: int, height: int) -> bytes:
    return (
        b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0"
        + b"\x30\x01\0\x9d\x01\x2a"
        + struct.pack("<HH", width, height)
        + b"\0" * 20
    )


def webp_lossless(width: int, height: int) -> bytes:
    return b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f" + struct.pack("<I", width - 1 | height - 1 << 14) + b"\0" * 20


def webp_extended(width: int, height: int) -> bytes:
    sizes = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + sizes + b"\0" * 20


FORMATS = {
    "png": png(1280, 720),
    "gif": gif(1280, 720),
    "jpeg": jpeg(1280, 720),
    "progressive jpeg": jpeg(1280, 720, start_of_frame=0xC2),
    "jpeg with a long profile": jpeg(1280, 720, before=9),
    "jpeg with fill bytes": jpeg(1280, 720).replace(b"\xff\xdb", b"\xff\xff\xff\xdb", 1),
    "lossy webp": webp_lossy(1280, 720),
    "lossless webp": webp_lossless(1280, 720),
    "extended webp": webp_extended(1280, 720),
}


@pytest.mark.parametrize("data", FORMATS.values(), ids=FORMATS)
def test_the_size_of_a_picture_is_read_from_its_header(data: bytes) -> None:
    assert dimensions(uri(data)) == (1280, 720)


def test_only_the_header_is_decoded() -> None:
    assert dimensions(uri(png(640, 480)) + "!" * 1000) == (640, 480)


@pytest.mark.parametrize(
    "source",
    [
        base64.b64encode(png(64, 32)).decode(),
        base64.urlsafe_b64encode(png(64, 32)).decode(),
        "DATA:image/png;charset=x;BASE64," + base64.b64encode(png(64, 32)).decode(),
        "data:image/png;base64,\n" + base64.encodebytes(png(64, 32)).decode().replace("\n", "\r\n"),
    ],
    ids=["bare", "bare and URL-safe", "capitals and a parameter", "lines"],
)
def test_base64_is_read_as_clients_write_it(source: str) -> None:
    assert dimensions(source) == (64, 32)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "https://example.org/a.png",
        "data:",
        "data:,",
        "data:image/png;base64,",
        "data:image/png;base64,????",
        "data:image/svg+xml;utf8,<svg width='5'/>",
        "data:image/png;base64,\ud83d\ude00",
        "file-abc123",
        uri(png(640, 480)[:18]),
        uri(png(0, 480)),
        uri(jpeg(640, 480)[:30]),
        uri(b"\xff\xd8\xff\xe0\0\0" * 4000),
        uri(b"RIFF\0\0\0\0WEBPVP9 " + b"\0" * 40),
        uri(b"%PDF-1.7 " + b"\0" * 40),
    ],
)
def test_what_cannot_be_read_costs_what_an_ordinary_picture_does(source: str) -> None:
    assert dimensions(source) is None
    assert media_tokens(Media("image_url", source, ""), "gpt-4o") == image_tokens(*ASSUMED_SIZE, "", "gpt-4o")


@pytest.mark.parametrize(
    ("model", "width", "height", "detail", "tokens"),
    [
        # OpenAI's own examples of tiles
        ("gpt-4o", 1024, 1024, "high", 765),
        ("gpt-4o", 2048, 4096, "high", 1105),
        ("gpt-4o", 4096, 8192, "low", 85),
        ("openai/gpt-4.1", 512, 512, "auto", 255),
        ("gpt-4o-mini", 512, 512, "", 2833 + 5667),
        ("gpt-5", 512, 512, "", 70 + 140),
        ("gpt-5.1", 512, 512, "", 70 + 140),
        ("o3", 512, 512, "", 75 + 150),
        ("o1-pro", 512, 512, "low", 75),
        # patches of 32 pixels
        ("gpt-4.1-mini", 1024, 1024, "", 1659),
        ("gpt-4.1-nano", 4000, 4000, "", 3779),
        ("o4-mini", 1024, 1024, "", 1762),
        ("gpt-5-mini", 320, 320, "", 162),
        ("gpt-5.4", 1024, 1024, "high", 1229),
        ("gpt-5.4", 9000, 9000, "high", 3000),
        ("gpt-5.2", 1024, 1024, "low", 308),
        # patches of 28 pixels
        ("claude-sonnet-4-5-20250929", 1000, 1000, "", 36 * 36),
        ("anthropic/claude-3-5-sonnet", 4000, 4000, "", 1568),
        ("claude-opus-4-20250514", 4000, 4000, "", 1568),
        ("claude-opus-4-7", 4000, 4000, "", 4784),
        ("claude-sonnet-5", 4000, 4000, "", 4784),
        ("gemini-2.5-pro", 384, 384, "", 258),
        ("google/gemini-2.5-flash", 1024, 1024, "", 4 * 258),
        ("qwen/qwen2.5-vl-72b-instruct", 1120, 840, "", 40 * 30),
        ("qwen3-vl-8b", 1280, 960, "", 40 * 30),
        ("qwen2-vl", 1, 1, "", 4),
        ("gemma-3-27b-it", 5000, 5000, "", 256),
        ("my-deployment", 1024, 1024, "", 765),
    ],
)
def test_a_picture_costs_what_its_family_takes(
    model: str, width: int, height: int, detail: str, tokens: int
) -> None:
    assert image_tokens(width, height, detail, model) == tokens


@pytest.mark.parametrize("model", MODELS)
def test_a_giant_picture_costs_no_more_than_the_family_shrinks_it_to(model: str) -> None:
    assert 0 < media_tokens(Media("image_url", uri(png(2**32 - 1, 2**32 - 1)), ""), model) < 50_000


@given(
    st.sampled_from(["image_url", "image", "input_audio", "audio", "video_url", "file", "input_file", "new"]),
    st.one_of(
        st.text(), st.binary().map(uri), st.sampled_from(list(FORMATS.values())).map(lambda d: uri(d[:25]))
    ),
    st.text(),
    st.sampled_from(MODELS) | st.text(),
)
def test_whatever_a_part_holds_it_has_a_bounded_cost(kind: str, source: str, detail: str, model: str) -> None:
    assert 0 < media_tokens(Media(kind, source, detail), model) < 50_000


def test_a_long_recording_costs_more_than_a_short_one_up_to_a_bound() -> None:
    second = (
        b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0" + struct.pack("<II", 16_000, 32_000) + b"\0" * 32_000
    )

    def cost(data: bytes, model: str) -> int:
        return media_tokens(Media("input_audio", base64.b64encode(data).decode(), ""), model)

    assert cost(second + b"\0" * 32_000 * 59, "gpt-4o-audio-preview") == pytest.approx(600, abs=5)
    assert cost(second + b"\0" * 32_000 * 59, "gemini-2.5-flash") == pytest.approx(32 * 60, abs=20)
    assert cost(second[:20] + b"\0" * 10_000_000, "gemini-2.5-flash") <= 40_000


def test_files_cost_by_their_size_within_bounds() -> None:
    def cost(source: str) -> int:
        return media_tokens(Media("file", source, ""), "gpt-4o")

    assert cost(uri(b"word " * 6000, "text/plain")) == 10_000
    assert cost(uri(b"%PDF" + b"\0" * 200_000, "application/pdf")) == pytest.approx(15_000, rel=0.01)
    assert cost(uri(b"%PDF" + b"\0" * 20_000_000, "application/pdf")) == 40_000
    assert cost("file-6F2ksmvXxt4VdoqmHRw6kL") == 7500


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("openrouter/openai/GPT-4", "gpt-4"),
        ("openai.gpt-oss-120b-1:0", "gpt-oss-120b-1:0"),
        ("us.anthropic.claude-sonnet-4-5-v1:0", "claude-sonnet-4-5-v1:0"),
        ("ft:gpt-4o:acme::id", "gpt-4o:acme::id"),
        ("C:\\Models\\Llama.gguf", "llama.gguf"),
        ("models/", ""),
        (None, ""),
        (12, ""),
    ],
)
def test_the_bare_name_leaves_out_who_serves_the_model(model: object, name: str) -> None:
    assert bare_name(model) == name
