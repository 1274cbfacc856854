"""Pictures of a run folder, made small: PNG only, of a bounded size, decoded and encoded again."""

import base64
import io
import re
from pathlib import Path

from PIL import Image

from harness.reports.html.reading import UnreadableRun, read_bytes
from harness.reports.pictures import first_rows_box, last_row_boxes

ROWS = 4
_MOST_PIXELS, _LONGEST_SIDE = 40_000_000, 20_000
_WIDTH, _QUALITY, _THUMB = 960, 45, 56


def open_picture(folder: Path, key: str) -> Image.Image:
    """The picture of a cell. Raises UnreadableRun."""
    if not re.fullmatch(r"[A-Za-z0-9_]{1,80}", key):
        raise UnreadableRun("has no key that could name a picture")
    try:
        # Of all formats the one we write: fewer decoders are fewer ways in.
        picture = Image.open(io.BytesIO(read_bytes(folder, "pictures", f"{key}.png")), formats=["PNG"])
        if picture.width * picture.height > _MOST_PIXELS or max(picture.size) > _LONGEST_SIDE:
            raise UnreadableRun("has too many pixels")
        return picture.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UnreadableRun("is not a PNG that can be read") from error


def first_rows(picture: Image.Image) -> Image.Image:
    """The first four victims of a grid, without the title: the page has its own."""
    return picture.crop(first_rows_box(*picture.size, ROWS))


def shrink(picture: Image.Image) -> tuple[bytes, int, int]:
    """The whole picture at most 960 pixels wide as WebP, and its size."""
    scale = min(1.0, _WIDTH / picture.width)
    small = picture.resize(
        (max(1, round(picture.width * scale)), max(1, round(picture.height * scale))), Image.Resampling.LANCZOS
    )
    buffer = io.BytesIO()
    small.save(buffer, "WEBP", quality=_QUALITY, method=4)
    return buffer.getvalue(), small.width, small.height


def pair(picture: Image.Image) -> tuple[str, str] | None:
    """The last victim's truth and its final reconstruction as small images; None where the grid has no such tiles."""
    boxes = last_row_boxes(*picture.size)
    if boxes is None:
        return None
    truth, final = boxes
    return _thumb(picture.crop(truth)), _thumb(picture.crop(final))


def _thumb(tile: Image.Image) -> str:
    buffer = io.BytesIO()
    tile.resize((_THUMB, _THUMB), Image.Resampling.BOX).save(buffer, "WEBP", quality=60, method=4)
    return data_uri(buffer.getvalue(), "webp")


def data_uri(content: bytes, kind: str) -> str:
    """An image as part of the page."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
