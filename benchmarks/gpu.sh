#!/usr/bin/env bash
# What a GPU is worth, part by part, each beside the CPU in the same call: benchmarks/gpu.sh PART [FOLDER]
#
# PART is tests, noise-bits, attack, train, resnet18, vit, paper-scale, or page. Each part takes less than eight minutes,
# writes FOLDER/PART.json (FOLDER: gpu), and is not run again where that file lies there. `page` prints a page of what
# there is and says which parts did not run. Nothing is fetched: install the package before, and let HARNESS_DATA name a
# folder with MNIST. On the emulated device of tests/second_device, a rehearsal that says nothing about time:
#
#     SECOND_DEVICE_COUNT=1 HARNESS="python tests/second_device/second_device.py" QUICK=1 benchmarks/gpu.sh attack rehearsal
#
# For its parts tests and noise-bits, PYTHONPATH=tests/second_device PYTEST_ADDOPTS="-p second_device" beside these.
# PYTHONSAFEPATH=1 needs the checkout on PYTHONPATH too, where the environment has another one installed. On a busy
# machine, `taskset -c 0` before it: threads that wait for each other take minutes for seconds.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
part="${1:?which part? see the head of this file}" folder="${2:-gpu}"
read -ra harness <<<"${HARNESS:-harness}"
mkdir -p "$folder"

# both NAME ARGUMENTS...: the same command on both devices; each prints JSON.
both() {
    local name="$1"; shift
    for device in cpu cuda; do
        "${harness[@]}" "$@" --device "$device" --json >"$folder/.$name.$device"
    done
    printf '{"command": "%s", "cpu": %s, "cuda": %s}\n' "$*" "$(<"$folder/.$name.cpu")" "$(<"$folder/.$name.cuda")" \
        >"$folder/.$name" && mv "$folder/.$name" "$folder/$name.json"
    rm "$folder/.$name".*
}

# tests NAME ARGUMENTS...: how many passed.
tests() {
    local name="$1"; shift
    PYTHONSAFEPATH=1 python -m pytest -q -n 0 -m gpu "$@" | tee "$folder/.$name.txt"
    printf '{"command": "pytest -m gpu %s", "said": "%s"}\n' "$*" "$(tail -n 1 "$folder/.$name.txt")" >"$folder/$name.json"
}

# A round of the papers' scale (100 clients, 100 local steps, batches of 5), 20 of them; 100 take five times as long.
rounds() {
    local size=(--clients 1000 --clients-per-round 100 --rounds 20 --local-steps 100)
    if [[ -n "${QUICK:-}" ]]; then size=(--clients 6 --clients-per-round 3 --rounds 2 --local-steps 2); fi
    for device in cpu cuda; do
        local limit=()
        if [[ "$device" == cpu && -z "${QUICK:-}" ]]; then limit=(--rounds 1); fi # a round says what twenty take
        rm -rf "$folder/.rounds-$device"
        "${harness[@]}" train --dataset "${DATASET:-mnist}" --defense fed_cdp "${size[@]}" "${limit[@]}" --batch-size 5 \
            --seed 0 --device "$device" --out "$folder/.rounds-$device" --json >"$folder/.rounds.$device"
    done
    printf '{"command": "train --dataset mnist --defense fed_cdp", "cpu": %s, "cuda": %s}\n' \
        "$(<"$folder/.rounds.cpu")" "$(<"$folder/.rounds.cuda")" >"$folder/paper-scale.json"
    rm -rf "$folder"/.rounds*
}

page() {
    python - "$folder" <<'PYTHON'
import json
import sys
from pathlib import Path

folder, missing = Path(sys.argv[1]), []
print("# What a GPU is worth\n")
for part in ("tests", "noise-bits", "attack", "train", "resnet18", "vit", "paper-scale"):
    file = folder / f"{part}.json"
    if not file.exists():
        missing.append(part)
        continue
    found = json.loads(file.read_text())
    print(f"## {part}\n\n`{found['command']}`\n")
    if "said" in found:
        print(found["said"], "\n")
        continue
    sides = [side[0] if isinstance(side, list) else side for side in (found["cpu"], found["cuda"])]
    print("| | CPU | GPU |\n|---|---|---|")
    for name in sides[0]:
        both = [side.get(name) for side in sides]
        if name != "schema_version" and all(type(value) in (int, float) for value in both):
            print(f"| {name} | {both[0]} | {both[1]} |")
    print()
print("Not run:", ", ".join(missing) or "nothing", "\n\nFigures of paper-scale are of 20 rounds (the CPU's of one).")
PYTHON
}

if [[ "$part" != page && -e "$folder/$part.json" ]]; then
    echo "$folder/$part.json is there; remove it to run the part again"
    exit 0
fi
few=() clients=(); if [[ -n "${QUICK:-}" ]]; then few=(--victims 2) clients=(--clients 1,2); fi
case "$part" in
tests) tests tests tests/evaluation/test_gpu.py ;;
noise-bits) tests noise-bits tests/base/test_device_noise.py ;;
attack) both attack bench attack --dataset mnist-sample --growth 0 --minutes "${MINUTES:-3}" --jobs 1 "${few[@]}" ;;
train) both train bench train --repeats "${REPEATS:-100}" "${clients[@]}" ;;
resnet18) both resnet18 bench attack --model torchvision:resnet18 --iterations 1 --jobs 1 "${few[@]}" ;;
vit) both vit bench attack --model vit --attack cpl --iterations 1 --jobs 1 "${few[@]}" ;;
paper-scale) rounds ;;
page) page ;;
*) echo "unknown part $part; the head of this file lists them" >&2; exit 2 ;;
esac
