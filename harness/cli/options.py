"""Turns command-line options, presets and configuration files into cells."""

import difflib
import hashlib
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from harness.attacks import ATTACKS
from harness.building import parse_assignments
from harness.datasets import DATASETS
from harness.defenses import DEFENSES
from harness.errors import UsageError
from harness.experiment import CellSettings, expand, taps_of
from harness.presets import PRESETS
from harness.training import kept_model, kept_server_state, kept_variates, trained_run, training_options

DEFAULTS: dict[str, Any] = {
    "dataset": ["mnist-sample"], "model": [], "defense": [], "attack": ["cpl"], "surface": [], "tap": [],
    "victims": 64, "batch_size": ["1"], "observations": ["1"], "round": ["0"], "seed": ["0"],
    "defense_arg": [], "attack_arg": [],
}  # fmt: skip

# Options that are settings of a cell under the same name.
_PASSED_ON = (
    "victims", "distinct_labels", "clients", "clients_per_round", "rounds", "learning_rate", "local_steps",
    "update_model", "labels", "engine", "dtype", "steps_per_round", "sampling_rate",
)  # fmt: skip


def split_lists(values: Iterable[str]) -> list[str]:
    """``["a,b", "c"]`` as ``["a", "b", "c"]``, without repeats, in order."""
    parts = [part.strip() for value in values for part in str(value).split(",")]
    return list(dict.fromkeys(part for part in parts if part))


def merge(given: dict[str, Any], preset: str | None, config: Path | None) -> list[dict[str, Any]]:
    """Options given on the command line over a preset's or configuration file's, a training run's, and the defaults.

    Returns:
        One set of options per grid; only a preset may have several.

    Raises:
        UsageError: unknown preset, unreadable file, or an option in it that does not exist.
    """
    if preset and config:
        raise UsageError("both --preset and --config were given; choose one")
    grids = _grids(preset) if preset else [_read_config(config, set(given)) if config else {}]
    return [_over_defaults(given, chosen) for chosen in grids]


def _grids(preset: str) -> list[dict[str, Any]]:
    if preset not in PRESETS:
        near = difflib.get_close_matches(preset, PRESETS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(PRESETS)}"
        raise UsageError(f"unknown preset {preset!r}; {hint}")
    chosen = PRESETS[preset][1]
    return chosen if isinstance(chosen, list) else [chosen]


def _over_defaults(given: dict[str, Any], chosen: dict[str, Any]) -> dict[str, Any]:
    said = {name: value for name, value in given.items() if value not in (None, [], ())}
    folder = said.get("training") or chosen.get("training")
    trained = training_options(Path(folder)) if folder else {}
    if "defense" in said or "defense" in chosen:
        # The settings of the defense it was trained under do not fit another one.
        trained.pop("defense_arg", None)
    return {**dict.fromkeys(given), **DEFAULTS, **trained, **chosen, **said}


def _read_config(path: Path, known: set[str]) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r} ({error.strerror}); check --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f'{str(path)!r} is not TOML ({error}); write for example attack = ["cpl"]') from error
    options = {name.replace("-", "_"): value for name, value in content.items()}
    unknown = sorted(set(options) - known)
    if unknown:
        raise UsageError(
            f"{str(path)!r} has an unknown option {unknown[0]!r}; use the names of harness evaluate --help"
        )
    lists = [name for name, value in DEFAULTS.items() if isinstance(value, list)]
    for name in lists:
        if name in options:
            entries = options[name] if isinstance(options[name], list) else [options[name]]
            options[name] = [str(entry) for entry in entries]
    return options


def cells_from(options: dict[str, Any], device: str) -> list[CellSettings]:
    """Every combination of the listed options.

    Raises:
        UsageError: unknown names or settings, impossible values; one line with the mend.
    """
    if not split_lists(options["defense"]):
        raise UsageError("no defense named; add --defense fed_acdp (harness list defenses shows all)")
    for name in ("attack", "dataset", "model", "batch_size", "observations", "round", "seed"):
        if not split_lists(options[name]) and (name != "model" or options[name]):
            option = name.replace("_", "-")
            raise UsageError(f"--{option} is empty; give it a value or leave it out")
    defenses = [DEFENSES.resolve(name) for name in split_lists(options["defense"])]
    attacks = [ATTACKS.resolve(name) for name in split_lists(options["attack"])]
    defense_args = parse_assignments(list(options["defense_arg"]), defenses, DEFENSES)
    attack_args = parse_assignments(list(options["attack_arg"]), attacks, ATTACKS)
    common = {name: options[name] for name in _PASSED_ON if options.get(name) is not None}
    if options.get("training"):
        common["trained"] = trained_run(Path(options["training"]))
    common |= {"device": device, "seeds": tuple(numbers(options["seed"], "seed"))}
    grid = {
        "dataset": [_known_dataset(name) for name in split_lists(options["dataset"])],
        "model": split_lists(options["model"]) or [None],  # None: each dataset's own default
        "defense": [(name, defense_args[name]) for name in defenses],
        "attack": [(name, attack_args[name]) for name in attacks],
        "batch_size": numbers(options["batch_size"], "batch-size"),
        "tap": taps_of(numbers(options["surface"], "surface"), split_lists(options["tap"])),
        "observations": numbers(options["observations"], "observations"),
        "model_at": [_model_at(options, round_index) for round_index in numbers(options["round"], "round")],
    }
    return [_with_server_state(cell, options) for cell in expand(grid, **common)]


def _known_dataset(name: str) -> str:
    return name if name.endswith(".npz") else DATASETS.resolve(name)


def numbers(values: Iterable[Any], option: str) -> list[int]:
    """Whole numbers from comma-separated or repeated values.

    Raises:
        UsageError: one of them is not a whole number.
    """
    try:
        return [int(value) for value in split_lists(values)]
    except ValueError as error:
        raise UsageError(
            f"--{option} takes whole numbers separated by commas, got {','.join(map(str, values))!r}"
        ) from error


def _model_at(options: dict[str, Any], round_index: int) -> dict[str, Any]:
    """The settings that name the model of a training round."""
    for other in ("weights", "server_state", "variates"):
        if options.get("training") and options.get(other):
            raise UsageError(f"both --training and --{other.replace('_', '-')} were given; choose one")
    if not options.get("training"):
        named = _file("weights", options.get("weights")) | _file("variates", options.get("variates"))
        return {"round": round_index} | named
    # The model after the last round of a run is attacked in the round that would have followed.
    (planned,) = numbers([options["rounds"]], "rounds")
    folder = Path(options["training"])
    named = _file("weights", kept_model(folder, round_index)) | _file("variates", kept_variates(folder, round_index))
    return {"round": round_index, "rounds": max(planned, round_index + 1)} | named


def _with_server_state(cell: CellSettings, options: dict[str, Any]) -> CellSettings:
    """The cell with what the server remembered by its round, where its defense goes by it."""
    if options.get("training"):
        path = kept_server_state(Path(options["training"]), cell.round, cell.defense, cell.defense_args)
    else:
        path = options.get("server_state") if cell.round and cell.build_defense().adapts() else None
    return cell.model_copy(update=_file("server_state", path))


def _file(name: str, path: str | Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        digest = hashlib.sha256(Path(str(path)).read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(
            f"cannot read {name.replace('_', ' ')} {str(path)!r} ({error.strerror}); check --{name.replace('_', '-')}"
        ) from error
    return {name: str(path), f"{name}_hash": digest}


def choose_device(name: str) -> str:
    """``cpu`` or ``cuda`` for ``auto``, ``cpu`` or ``cuda``.

    Raises:
        UsageError: a GPU is asked for where there is none.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise UsageError(f"unknown device {name!r}; choose auto, cpu or cuda")
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UsageError("no CUDA device is available here; use --device cpu")
    return "cuda" if available and name != "cpu" else "cpu"
