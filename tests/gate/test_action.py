"""The action for other repositories: what its script does in a folder without a baseline, and in one with it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "gate-in-your-repository.md").read_text(encoding="utf-8")
EVALUATE = "--defense none,noise --attack idlg --dataset digits --model mlp2 --surface 2 --victims 24 --no-pictures"


def gate(place: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    given = {"EVALUATE": EVALUATE, "BASELINE": "baseline.json", "GITHUB_STEP_SUMMARY": str(place / "step.md")}
    environment = os.environ | {"PATH": path} | given | settings
    script = ["bash", str(ROOT / ".ci" / "gate")]
    return subprocess.run(script, cwd=place, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_the_first_run_makes_the_baseline_and_the_next_is_held_to_it(tmp_path: Path) -> None:
    first = gate(tmp_path)
    assert first.returncode == 0 and "commit baseline.json" in first.stdout, first.stderr
    assert gate(tmp_path).returncode == 0
    assert "Regression gate: passed" in (tmp_path / "step.md").read_text()
    assert (tmp_path / "harness-gate" / "report.html").exists() and (tmp_path / "harness-gate" / "junit.xml").exists()

    document = json.loads((tmp_path / "baseline.json").read_text())
    for cell in document["cells"]:
        if cell["settings"]["defense"] == "noise":
            cell["rmses"] = [rmse * 1000 for rmse in cell["rmses"]]
            cell["ranks"], cell["successes"] = [0.9] * len(cell["ranks"]), [0.0] * len(cell["ranks"])
    (tmp_path / "baseline.json").write_text(json.dumps(document))
    assert gate(tmp_path).returncode == 1
    assert gate(tmp_path, EVALUATE=EVALUATE.replace("noise", "nise")).returncode == 2


def test_the_action_and_the_guide_name_what_there_is() -> None:
    action = (ROOT / "action.yml").read_text(encoding="utf-8")
    inputs = set(re.findall(r"^  ([a-z-]+):$", action.split("outputs:")[0], re.MULTILINE))
    assert inputs == {"install", "evaluate", "baseline", "python-version"}
    assert set(re.findall(r"inputs\.([a-z-]+)", action)) == inputs
    (workflow,) = re.findall(r"^```yaml\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)
    assert len(workflow.splitlines()) <= 10
    assert set(re.findall(r"^          ([a-z-]+): ", workflow, re.MULTILINE)) <= inputs
