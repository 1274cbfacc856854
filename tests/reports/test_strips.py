"""The picture of a cell on a table: a block of strips per victim, in the right shades."""

import io
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from harness.base.columns import Columns, Group
from harness.base.errors import UsageError
from harness.reports.cell_picture import _BOTTOM, _GAP, _LEFT, _RIGHT, _STRIP, _WIDTH, save_strips
from harness.reports.pictures import DOTS_PER_INCH, MOST_ROWS

COLUMNS = Columns(("a", "b"), (Group("g", ("x", "y")),))


def shade(n: int, *values: float) -> np.ndarray:
    """n rows of the same four features."""
    return np.tile(np.array(values), (n, 1))


def picture(path: Path) -> np.ndarray:
    return imread(io.BytesIO(path.read_bytes()))[..., :3]


def shades(pixels: np.ndarray, strips: int) -> list[list[float]]:
    """The brightness in the middle of each cell of the last block, strip by strip."""
    lower = pixels.shape[0] - _BOTTOM * DOTS_PER_INCH
    heights = [round(lower - (strips - number - 0.5) * _STRIP * DOTS_PER_INCH) for number in range(strips)]
    width = (_WIDTH - _LEFT - _RIGHT) / COLUMNS.width
    places = [round((_LEFT + (column + 0.5) * width) * DOTS_PER_INCH) for column in range(COLUMNS.width)]
    return [[round(float(pixels[height, place, 0]), 1) for place in places] for height in heights]


def test_strips_stand_in_order_and_are_clamped(tmp_path: Path) -> None:
    path = tmp_path / "new" / "strips.png"
    stages = [("iteration 1", shade(2, 7, -7, 0.5, np.nan)), ("final", shade(2, 0.2, 0.4, 0.6, 0.8))]
    save_strips(path, shade(2, 0, 1, 0, 1), stages, ["RMSE 0.1", "RMSE 0.2"], "cpl", COLUMNS)
    assert shades(picture(path), 3) == [[1, 0, 1, 0], [0, 1, 0.5, 1], [0.8, 0.6, 0.4, 0.2]]
    assert [file.name for file in path.parent.iterdir()] == ["strips.png"]


def test_the_picture_grows_with_its_rows_up_to_eight(tmp_path: Path) -> None:
    def height(rows: int) -> int:
        save_strips(tmp_path / "s.png", shade(rows, 0, 1, 0, 1), [], ["RMSE"] * rows, "cpl", COLUMNS)
        return picture(tmp_path / "s.png").shape[0]

    assert height(2) - height(1) == pytest.approx((_STRIP + _GAP) * DOTS_PER_INCH, abs=1)
    assert height(1) < height(MOST_ROWS) == height(MOST_ROWS + 3)


@pytest.mark.parametrize("name", ["$\\frac{", "数\U0001f600\x1b[31m", "long " * 40])
def test_any_name_can_be_drawn(tmp_path: Path, name: str) -> None:
    columns = Columns((), (Group(name, ("x",)),))
    save_strips(tmp_path / "s.png", np.ones((1, 1)), [(name, np.zeros((1, 1)))], [name], name, columns)
    assert [file.name for file in tmp_path.iterdir()] == ["s.png"]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    path, one = tmp_path / "s.png", shade(1, 0, 0, 0, 0)
    with pytest.raises(ValueError, match=r"truth must be \(n, 4\)"):
        save_strips(path, one[:, :3], [], ["a"], "", COLUMNS)
    with pytest.raises(ValueError, match="'final' has shape"):
        save_strips(path, one, [("final", shade(2, 0, 0, 0, 0))], ["a"], "", COLUMNS)
    with pytest.raises(ValueError, match="2 captions for 1 rows"):
        save_strips(path, one, [], ["a", "b"], "", COLUMNS)
    assert not path.exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--out"):
        save_strips(tmp_path / "file" / "s.png", one, [], ["a"], "", COLUMNS)
