"""What came back of one note at each level of noise, from runs on 64 notes.

python docs/pictures/texts.py FOLDER   # evaluates into FOLDER (minutes; what is there is used), writes texts.png
"""

import sys
from pathlib import Path

from PIL import Image

from harness.cli import run
from harness.reports.text_picture import ShownText, save_shown, texts_of
from harness.results import ResultDocument

ATTACKS = ("token_rows", "decode")
LEVELS = [None, 0.001, 0.003, 0.01, 0.03]


def main(folder: Path) -> None:
    shown = [one for sigma in LEVELS for one in _at(folder, sigma)]
    first, *others = shown
    rest = [one.model_copy(update={"truth": None}) for one in others]
    title = "One private note, and what is read of it: token_rows (plain), decode (knows the noise)"
    save_shown(Path(__file__).with_name("texts.png"), [first, *rest], title)


def _at(folder: Path, sigma: float | None) -> list[ShownText]:
    """The first victim, whoever it is, as each attack reads it."""
    out = folder / f"texts-{sigma}"
    defense = "none" if sigma is None else "fed_cdp"
    setting = [] if sigma is None else ["--defense-arg", f"fed_cdp.sigma={sigma:g}"]
    line = ["evaluate", "--defense", defense, *setting, "--attack", ",".join(ATTACKS), "--dataset", "notes"]
    if run([*line, "--surface", "2", "--victims", "64", "--all-members", "--out", str(out), "--resume"]):
        raise SystemExit(f"{out} has no results")
    document = ResultDocument.model_validate_json((out / "results.json").read_text())
    found = []
    for cell in (cell for cell in document.cells if cell.role == "cell"):
        label = "no defense" if sigma is None else f"σ = {sigma:g}"
        print(label, cell.attack, cell.asr["strict"], cell.metrics["tokens_right"], cell.verdict)
        (first, *_) = texts_of(Image.open(out / "pictures" / f"{cell.key}.png").info)
        share = first.caption.partition(" ")[0]  # in percent
        found.append(first.model_copy(update={"label": label, "caption": f"{cell.attack}, {share}"}))
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
