"""What images, audio and files cost, in tokens, by model family.

Rules. Base64 is never counted as text: of a data URI only the few bytes are decoded that hold the picture's
size. What cannot be read, a remote address or a broken header, costs what a picture of `ASSUMED_SIZE` costs.
Every cost is bounded, whatever the header claims, and nothing here raises. The costs are guesses beside those
of text, and a message with media must not teach the calibration.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from functools import partial
from math import ceil
from typing import NamedTuple

from proxy.context.conversation import Media

ASSUMED_SIZE = (1536, 1024)
"""Width and height in pixels of a picture that cannot be looked at: the upper end of what clients send."""

IMAGE_KINDS = frozenset(("image_url", "image", "input_image"))
AUDIO_KINDS = frozenset(("input_audio", "audio", "audio_url"))
VIDEO_KINDS = frozenset(("video_url", "video", "input_video"))
FILE_KINDS = frozenset(("file", "input_file", "document"))
KINDS = IMAGE_KINDS | AUDIO_KINDS | VIDEO_KINDS | FILE_KINDS
"""The part types whose cost is worked out here; a part of any other type is text to be counted."""


def media_tokens(media: Media, model: str) -> int:
    """Tokens of a content part of one of the `KINDS` for this model; bounded and total."""
    if media.kind in IMAGE_KINDS:
        width, height = dimensions(media.source) or ASSUMED_SIZE
        return image_tokens(width, height, media.detail, model)
    if media.kind in AUDIO_KINDS:
        return _audio(media.source, model)
    return _VIDEO_TOKENS if media.kind in VIDEO_KINDS else _file(media.source)


def image_tokens(width: int, height: int, detail: str, model: str) -> int:
    """Tokens of one picture; its size in pixels, `detail` as the client wrote it ("low", "high", "" ...)."""
    name = bare_name(model)
    cost = next((cost for pattern, cost in _IMAGES if pattern.match(name)), _DEFAULT_IMAGE)
    return cost(max(1, width), max(1, height), detail)


def bare_name(model: object) -> str:
    """A model's own name, in lower case, without the path or providers before it; empty for what is no text.

    `openrouter/openai/gpt-4` and `openai.gpt-4` and `ft:gpt-4:org::id` name the same family; of
    `C:\\models\\x.gguf` the file name counts.
    """
    if not isinstance(model, str):
        return ""
    return _PREFIX.sub("", model.lower().replace("\\", "/").rsplit("/", 1)[-1])


_PREFIX = re.compile(r"^(?:(?:ft|openai|azure|anthropic|google|us|eu|apac|global)[.:])+")


# --- cost by family -----------------------------------------------------------------------------------------

_Cost = Callable[[int, int, str], int]


def _tiles(width: int, height: int, detail: str, *, base: int, each: int) -> int:
    """OpenAI's tiles: fit into 2048 x 2048, shorter side down to 768, then `each` per 512-pixel tile."""
    if detail == "low":
        return base
    width, height = _shrink(width, height, min(1.0, 2048 / max(width, height)))
    width, height = _shrink(width, height, min(1.0, 768 / min(width, height)))
    return base + each * ceil(width / 512) * ceil(height / 512)


def _patches(
    width: int, height: int, detail: str, *, most: int, factor: float, low: int | None = None
) -> int:
    """Patches of 32 x 32 pixels, at most so many (`low` for that detail), each worth `factor` tokens."""
    limit = low if low is not None and detail == "low" else most
    return ceil(min(_grid(width, height, 32), limit) * factor)


def _claude(width: int, height: int, _detail: str, *, edge: int, most: int) -> int:
    """Claude's patches of 28 x 28 pixels, after the longer side is brought down to `edge`."""
    width, height = _shrink(width, height, min(1.0, edge / max(width, height)))
    return min(_grid(width, height, 28), most)


def _gemini(width: int, height: int, _detail: str) -> int:
    """258 for a small picture, else 258 per 768-pixel tile; larger sides than 3072 are brought down first."""
    if max(width, height) <= 384:
        return 258
    width, height = _shrink(width, height, min(1.0, 3072 / max(width, height)))
    return 258 * ceil(width / 768) * ceil(height / 768)


def _qwen(width: int, height: int, _detail: str, *, side: int) -> int:
    """Qwen-VL: one token per `side` x `side` pixels, never fewer than 4 and never more than 16384."""
    return min(max(4, _grid(width, height, side)), 16384)


def _fixed(_width: int, _height: int, _detail: str, *, tokens: int) -> int:
    return tokens


def _shrink(width: int, height: int, scale: float) -> tuple[int, int]:
    return max(1, round(width * scale)), max(1, round(height * scale))


def _grid(width: int, height: int, side: int) -> int:
    return ceil(width / side) * ceil(height / side)


_DEFAULT_IMAGE: _Cost = partial(_tiles, base=85, each=170)

# Pattern over the bare name -> cost; the first match counts. Sources: OpenAI's and Anthropic's vision pages
# and LiteLLM's token counter (OpenAI, Claude), qwen-vl-utils (Qwen), Google's documentation (Gemini, Gemma).
_IMAGES: tuple[tuple[re.Pattern[str], _Cost], ...] = (
    (re.compile(r"gpt-4o-mini"), partial(_tiles, base=2833, each=5667)),
    (re.compile(r"gpt-4\.1-mini|gpt-5-mini"), partial(_patches, most=1536, factor=1.62)),
    (re.compile(r"gpt-4\.1-nano|gpt-5-nano"), partial(_patches, most=1536, factor=2.46)),
    (re.compile(r"o4-mini"), partial(_patches, most=1536, factor=1.72)),
    # Detail "low" is a 512 x 512 picture; the largest published budget of the default detail is 2500 patches.
    (re.compile(r"gpt-5\.[2-9]|gpt-[6-9]"), partial(_patches, most=2500, factor=1.2, low=256)),
    (re.compile(r"gpt-5"), partial(_tiles, base=70, each=140)),
    (re.compile(r"o[13](?!\d)"), partial(_tiles, base=75, each=150)),
    (re.compile(r"computer-use"), partial(_tiles, base=65, each=129)),
    (re.compile(r"gpt-|chatgpt-"), partial(_tiles, base=85, each=170)),
    (re.compile(r"claude-[a-z]+-(?:4[-.][7-9]|[5-9])(?!\d)"), partial(_claude, edge=2576, most=4784)),
    (re.compile(r"claude"), partial(_claude, edge=1568, most=1568)),
    (re.compile(r"gemini"), _gemini),
    (re.compile(r"qwen2"), partial(_qwen, side=28)),
    (re.compile(r"qwen|qvq"), partial(_qwen, side=32)),
    (re.compile(r"gemma"), partial(_fixed, tokens=256)),
)


# --- audio, video, files ------------------------------------------------------------------------------------

_MOST_AUDIO = 40_000
_LEAST_AUDIO = 100
_VIDEO_TOKENS = 8_000
_MOST_FILE = 40_000
_LEAST_FILE = 1_000
_UNSEEN_BYTES = 100_000
_SHORTEST_HELD = 256  # characters
_COMPRESSED_AUDIO = 16_000  # bytes a second, that is 128 kbit/s
_TEXT_URI = re.compile(r"data:(?:text/|application/(?:json|xml|x-?yaml))", re.IGNORECASE)

# Tokens a second: Google documents 32 for Gemini; 10 is what OpenAI's speech models are reported to bill.
_AUDIO_RATES = ((re.compile(r"gemini"), 32), (re.compile(r"qwen"), 25))
_DEFAULT_AUDIO_RATE = 10


def _audio(source: str, model: str) -> int:
    """By duration, read from a WAV header, else taken from the size at 128 kbit/s."""
    name = bare_name(model)
    rate = next((rate for pattern, rate in _AUDIO_RATES if pattern.match(name)), _DEFAULT_AUDIO_RATE)
    head = _Payload(source).at(0, 32)
    bytes_a_second = int.from_bytes(head[28:32], "little") if head[:4] == b"RIFF" else _COMPRESSED_AUDIO
    return min(max(_LEAST_AUDIO, rate * _size(source) // max(1, bytes_a_second)), _MOST_AUDIO)


def _file(source: str) -> int:
    """A text file costs a third of its bytes; of any other a page is taken to have 20 kB and 1500 tokens."""
    size = _size(source)
    tokens = size // 3 if _TEXT_URI.match(source) else size * 1500 // 20_000
    return min(max(_LEAST_FILE, tokens), _MOST_FILE)


def _size(source: str) -> int:
    """Bytes of what a source holds; of an address, or an id, which may look like base64, what is usual."""
    payload = _Payload(source)
    is_held = len(source) >= _SHORTEST_HELD and payload.at(0, 4)
    return payload.size if is_held else _UNSEEN_BYTES


# --- the size of a picture ----------------------------------------------------------------------------------


class _Payload:
    """The bytes behind a base64 data URI or bare base64, decoded piece by piece."""

    def __init__(self, source: str) -> None:
        start = source.find(",", 0, 300) + 1 if source[:5].lower() == "data:" else 0
        encoded = ";base64" in source[:start].lower() or not start
        remote = not start and "://" in source[:16]
        self._text = source if encoded and not remote else ""
        self._start = start
        if any(space in self._text[:1024] for space in "\r\n "):
            self._text, self._start = "".join(self._text[start:].split()), 0
        self.size = max(0, (len(self._text) - self._start) * 3 // 4)

    def at(self, offset: int, length: int) -> bytes:
        """So many bytes from there; fewer at the end, none when this is no base64."""
        first = self._start + offset // 3 * 4
        piece = self._text[first : first + (length // 3 + 2) * 4].translate(_URL_SAFE)
        try:
            decoded = base64.b64decode(piece[: len(piece) // 4 * 4], validate=True)
        except (binascii.Error, ValueError):
            return b""
        return decoded[offset % 3 : offset % 3 + length]


_URL_SAFE = str.maketrans("-_", "+/")


class _Format(NamedTuple):
    """How a file format is recognised and where its size is read."""

    magic: re.Pattern[bytes]
    read: Callable[[_Payload, bytes], tuple[int, int] | None]


def dimensions(source: str) -> tuple[int, int] | None:
    """Width and height in pixels of a PNG, JPEG, GIF or WebP in base64 or a data URI; None if unreadable."""
    payload = _Payload(source)
    head = payload.at(0, 32)
    for kind in _FORMATS:
        if kind.magic.match(head):
            found = kind.read(payload, head)
            return found if found and min(found) > 0 else None
    return None


def _png(_payload: _Payload, head: bytes) -> tuple[int, int]:
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def _gif(_payload: _Payload, head: bytes) -> tuple[int, int]:
    return int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")


def _webp(_payload: _Payload, head: bytes) -> tuple[int, int] | None:
    """RFC 9649: a lossy, lossless or extended first chunk, each with the size in another place."""
    match head[12:16]:
        case b"VP8 ":
            return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(
                head[28:30], "little"
            ) & 0x3FFF
        case b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
        case _:
            return None


def _jpeg(payload: _Payload, _head: bytes) -> tuple[int, int] | None:
    """The first start-of-frame segment has height and width behind length and precision (T.81 B.2.2)."""
    for marker, offset in _jpeg_segments(payload):
        if marker in _START_OF_FRAME:
            frame = payload.at(offset + 5, 4)
            return int.from_bytes(frame[2:4], "big"), int.from_bytes(frame[0:2], "big")
    return None


def _jpeg_segments(payload: _Payload) -> Iterator[tuple[int, int]]:
    """Marker and offset of each segment up to the image data; ends where the chain of lengths breaks."""
    offset = 2
    for _ in range(_MOST_SEGMENTS):
        segment = payload.at(offset, 4)
        if len(segment) < 4 or segment[0] != 0xFF or segment[1] == _START_OF_SCAN:
            return
        if segment[1] == 0xFF:  # a fill byte before a marker
            offset += 1
            continue
        yield segment[1], offset
        offset += 2 + int.from_bytes(segment[2:4], "big")


_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_START_OF_SCAN = 0xDA
_MOST_SEGMENTS = 1000

_FORMATS = (
    _Format(re.compile(rb"\x89PNG\r\n\x1a\n.{4}IHDR", re.DOTALL), _png),
    _Format(re.compile(rb"\xff\xd8\xff"), _jpeg),
    _Format(re.compile(rb"GIF8[79]a"), _gif),
    _Format(re.compile(rb"RIFF.{4}WEBP", re.DOTALL), _webp),
)
