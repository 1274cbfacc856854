"""What came back of one note at each level of noise, from runs on 64 notes.

python docs/pictures/texts.py FOLDER   # evaluates into FOLDER (minutes; what is there is used), writes texts.png
"""

import sys
from pathlib import Path

from PIL import Image

from harness.cli import run
from harness.reports.text_picture import ShownText, save_shown, texts_of
from harness.results import ResultDocument

ATTACK = "token_rows"
LEVELS = [None, 0.001, 0.003, 0.01, 0.1]


def main(folder: Path) -> None:
    shown = [_at(folder, sigma) for sigma in LEVELS]
    first, *others = shown
    rest = [one.model_copy(update={"truth": None}) for one in others]
    save_shown(Path(__file__).with_name("texts.png"), [first, *rest], f"One private note, and what {ATTACK} reads")


def _at(folder: Path, sigma: float | None) -> ShownText:
    """The first victim, whoever it is."""
    out = folder / f"{ATTACK}-{sigma}"
    defense = "none" if sigma is None else "fed_cdp"
    setting = [] if sigma is None else ["--defense-arg", f"fed_cdp.sigma={sigma:g}"]
    line = ["evaluate", "--defense", defense, *setting, "--attack", ATTACK, "--dataset", "notes", "--surface", "2"]
    if run([*line, "--victims", "64", "--out", str(out), "--resume"]):
        raise SystemExit(f"{out} has no results")
    document = ResultDocument.model_validate_json((out / "results.json").read_text())
    (cell,) = (cell for cell in document.cells if cell.role == "cell")
    (first, *_) = texts_of(Image.open(out / "pictures" / f"{cell.key}.png").info)
    label = "no defense" if sigma is None else f"σ = {sigma:g}"
    print(label, cell.asr["strict"], cell.metrics["tokens_right"])
    return first.model_copy(update={"label": label})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
