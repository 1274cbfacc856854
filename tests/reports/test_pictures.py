"""The picture of a cell: a PNG with a row per victim and a column per stage, in the right colours."""

import io
import pickle
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.image import imread

from harness.base.errors import UsageError
from harness.reports.pictures import (
    _BOTTOM,
    _GAP,
    _LEFT,
    _TILE,
    DOTS_PER_INCH,
    MOST_ROWS,
    also_as,
    as_chosen,
    save_grid,
)


def flat(n: int, *colour: float) -> np.ndarray:
    """n images of 4x4 pixels in one colour, (n, C, 4, 4)."""
    return np.tile(np.array(colour).reshape(1, -1, 1, 1), (n, 1, 4, 4))


def picture(path: Path) -> np.ndarray:
    """(height, width, 3) in [0, 1]."""
    assert path.read_bytes().startswith(b"\x89PNG")
    return imread(io.BytesIO(path.read_bytes()))[..., :3]


def middle_colours(pixels: np.ndarray, columns: int) -> list[list[float]]:
    """The colour in the middle of each tile of the last row."""
    row = pixels.shape[0] - round((_BOTTOM + _TILE / 2) * DOTS_PER_INCH)
    places = [round((_LEFT + column * (_TILE + _GAP) + _TILE / 2) * DOTS_PER_INCH) for column in range(columns)]
    return [[round(float(value), 2) for value in pixels[row, place]] for place in places]


def test_truth_stages_and_final_stand_in_order_in_their_colours(tmp_path: Path) -> None:
    path = tmp_path / "new" / "grid.png"
    stages = [("iteration 1", flat(2, 0.0, 1.0, 0.0)), ("iteration 2", flat(2, 0.0, 0.0, 1.0))]
    save_grid(path, flat(2, 1.0, 0.0, 0.0), stages, flat(2, 0.2, 0.4, 0.6), ["RMSE 0.1", "RMSE 0.2"], "cpl")
    colours = middle_colours(picture(path), 4)
    assert colours == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.2, 0.4, 0.6]]
    assert [file.name for file in path.parent.iterdir()] == ["grid.png"]


def test_grey_is_grey_unscaled_and_clamped(tmp_path: Path) -> None:
    stages = [("high", flat(1, 7.0)), ("low", flat(1, -7.0)), ("nan", flat(1, np.nan)), ("inf", flat(1, np.inf))]
    save_grid(tmp_path / "grid.png", flat(1, 0.4), stages, flat(1, 0.6), ["RMSE 0.2"], "cpl")
    assert middle_colours(picture(tmp_path / "grid.png"), 6) == [[v] * 3 for v in (0.4, 1, 0, 0, 1, 0.6)]


def test_the_picture_grows_with_its_rows_up_to_eight(tmp_path: Path) -> None:
    def height(rows: int) -> int:
        save_grid(tmp_path / "grid.png", flat(rows, 0.5), [], flat(rows, 0.5), ["RMSE 0"] * rows, "cpl")
        return picture(tmp_path / "grid.png").shape[0]

    assert height(2) - height(1) == pytest.approx((_TILE + _GAP) * DOTS_PER_INCH, abs=1)
    assert height(1) < height(MOST_ROWS) == height(MOST_ROWS + 3)


def test_a_caption_and_a_title_leave_ink(tmp_path: Path) -> None:
    def ink(caption: str, title: str) -> float:
        save_grid(tmp_path / "grid.png", flat(1, 1.0), [], flat(1, 1.0), [caption], title)
        return float((picture(tmp_path / "grid.png") < 0.5).sum())

    assert ink("", "") < ink("RMSE 0.034", "") < ink("RMSE 0.034", "cpl")


@pytest.mark.parametrize("name", ["$\\frac{", "<script>", "[bold]", "../../x", "数\U0001f600\x1b[31m", "long " * 40])
def test_any_name_can_be_drawn(tmp_path: Path, name: str) -> None:
    save_grid(tmp_path / "grid.png", flat(1, 0.5), [(name, flat(1, 0.5))], flat(1, 0.5), [name], name)
    assert picture(tmp_path / "grid.png").std() > 0
    assert [file.name for file in tmp_path.iterdir()] == ["grid.png"]


def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        save_grid(tmp_path / name, flat(1, 0.3), [], flat(1, 0.5), ["RMSE 0.2"], "cpl")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_shapes_that_disagree_are_refused(tmp_path: Path) -> None:
    path, one, two = tmp_path / "grid.png", flat(1, 0.5), flat(2, 0.5)
    with pytest.raises(ValueError, match="'final' has shape"):
        save_grid(path, one, [], two, ["a"], "")
    with pytest.raises(ValueError, match="2 captions for 1 images"):
        save_grid(path, one, [], one, ["a", "b"], "")
    with pytest.raises(ValueError, match="C 1 or 3"):
        save_grid(path, flat(1, 0.1, 0.2), [], flat(1, 0.1, 0.2), ["a"], "")
    assert not path.exists()


def test_a_folder_that_cannot_be_written_names_the_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--out"):
        save_grid(tmp_path / "file" / "grid.png", flat(1, 0.5), [], flat(1, 0.5), ["a"], "")


def test_other_forms_stand_beside_it_with_equal_bytes(tmp_path: Path) -> None:
    def draw(folder: str) -> dict[str, bytes]:
        save_grid(tmp_path / folder / "grid.png", flat(1, 1.0), [], flat(1, 0.5), ["RMSE 0.5"], "a $ title")
        return {file.name: file.read_bytes() for file in (tmp_path / folder).iterdir()}

    with also_as(("svg", "pdf")):
        first, again, elsewhere = draw("first"), draw("again"), as_chosen(draw)
        assert pickle.loads(pickle.dumps(as_chosen(save_grid))).args == (("svg", "pdf"), save_grid)
    assert sorted(first) == ["grid.pdf", "grid.png", "grid.svg"] and first == again
    assert first["grid.pdf"].startswith(b"%PDF-")
    assert ElementTree.fromstring(first["grid.svg"]).tag.endswith("svg")
    assert list(draw("alone")) == ["grid.png"] and as_chosen(draw) is draw
    elsewhere("by another process")
    assert len(list((tmp_path / "by another process").iterdir())) == 3
