"""Runs the attack of a cell, once per distinct observation, and keeps what it made on disk.

Rows are independent, so the first victims of a large cell are the whole of a small one: they are kept under the small
one's key too, which spares an undefended cell's victims a second attack as somebody's positive control.
"""

import hashlib
import json
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from harness.attacks import ATTACKS, Attack, Reconstruction, reconstructing, run_attack, run_reference
from harness.attacks.engine import MEASURED, REASONS, memory_of_row, victims_together
from harness.attacks.pooled import pooled
from harness.base.devices import fitting, is_small, threads_of
from harness.base.progress import progress
from harness.base.version import SCHEMA_VERSION, __version__
from harness.evaluation.controls import smaller
from harness.evaluation.measure import strict_rule
from harness.evaluation.observe import Scene
from harness.evaluation.watching import AttackForecast, AttackRecorder, RunForecast
from harness.experiment import CellSettings
from harness.observation import Observation
from harness.own_sources import plugin_source
from harness.results import RunFolder

log = logging.getLogger(__name__)

Engine = Callable[[Attack, Observation, int, AttackForecast | None], Reconstruction]
"""Attacks every row of an observation, so many rows at a time, while somebody watches."""


def in_one_process(
    attack: Attack, observation: Observation, chunk: int, watched: AttackForecast | None = None
) -> Reconstruction:
    """The engine that is there always."""
    return run_attack(attack, observation, chunk, watched, watched and watched.advance)


@dataclass(frozen=True)
class AttackRecord:
    """A reconstruction with what the recorder saw of it.

    ``tau`` (R, n): first strict iteration or the cap. ``snapshots``: iteration to images of the first rows.
    ``looks``: of each round by itself, where rounds were pooled.
    """

    key: str
    reconstruction: Reconstruction
    tau: Tensor
    snapshots: dict[int, Tensor]
    looks: Reconstruction | None = None


def attack_scene(
    settings: CellSettings, scene: Scene, folder: RunFolder, chunk: int, reuse: bool, seen: set[str],
    forecast: RunForecast | None = None, engine: Engine = in_one_process,
) -> AttackRecord:  # fmt: skip
    """Attacks a scene, or reads the result of an equal observation attacked before.

    Args:
        settings: which attack, engine and precision.
        scene: the observation and, for the recorder only, the truth.
        folder: where reconstructions are kept.
        chunk: rows attacked together.
        reuse: whether files of earlier runs may be used (``--resume``).
        seen: keys already attacked in this run; updated.
        forecast: on what follows in this run.
        engine: what attacks, where settings ask for the batched engine.
    """
    attack = reconstructing(settings.build_attack())
    observation = scene.observation.known_to(attack.tier)
    rows, truth = observation.rows, scene.of_rows
    key = _attack_key(settings, observation, truth)
    with folder.locked(key):
        if reuse or key in seen:
            stored = folder.read_arrays(key)
            if stored is not None and _is_of(stored, truth, scene.dataset.num_classes):
                seen.add(key)
                return _unpack(key, stored)
            if stored is not None:
                log.warning("the reconstruction %s is computed again: its arrays are not those of this attack", key)
        record = _attacked(settings, scene, observation, truth, chunk, key, forecast, engine)
        folder.write_arrays(key, _pack(record))
        seen.add(key)
    own = smaller(settings).victims * (rows // len(scene.truth.labels))
    if own < rows:  # what a control of this cell would attack, as the result of attacking it alone
        _keep_first(own, record, settings, observation, truth, folder, seen)
    return record if scene.drawn is None else _of_clients(record, attack, observation, scene.drawn, chunk)


def _of_clients(
    record: AttackRecord, attack: Attack, observation: Observation, drawn: Tensor, chunk: int
) -> AttackRecord:
    """Return the record of all that clients hold, from the record of their rounds. An image came back when it first did
    in any round."""
    assert observation.client is not None
    made = pooled(attack, observation, record.reconstruction, chunk)
    tau = torch.full((len(drawn), observation.client[1]), attack.max_iterations).to(record.tau)
    tau.scatter_reduce_(1, drawn.flatten(1), record.tau.reshape(len(drawn), -1), "amin")
    return AttackRecord(record.key, made, tau, {}, record.reconstruction)


def _attacked(
    settings: CellSettings, scene: Scene, observation: Observation, truth: Tensor, chunk: int, key: str,
    forecast: RunForecast | None, engine: Engine,
) -> AttackRecord:  # fmt: skip
    attack, rows = reconstructing(settings.build_attack()), observation.rows
    recorder = AttackRecorder(truth, attack.starts, strict_rule(scene.dataset))
    with progress(title_of(settings), rows, "victims", at_most=True) as bar:
        watched = AttackForecast(recorder, bar, rows, attack, settings, forecast)
        if settings.engine == "reference":
            reconstruction = run_reference(attack, observation, watched, watched.advance)
        else:
            reconstruction = engine(attack, observation, at_once(attack, observation, chunk, settings), watched)
    return AttackRecord(
        key,
        reconstruction,
        recorder.tau(reconstruction.restart, attack.max_iterations),
        recorder.snapshots(reconstruction.restart, reconstruction.images),
    )


def at_once(attack: Attack, observation: Observation, chunk: int, settings: CellSettings) -> int:
    """Return how many rows to attack together: ``chunk``, or as many as fit into memory."""
    model, victims = observation.model, victims_together(attack, observation, chunk)
    pixels, asked = observation.examples * math.prod(model.image_shape), victims * attack.starts
    # To measure as many as are attacked together takes as much memory as the attack, and often as long.
    if victims <= MEASURED or is_small(asked, model.layout.total, pixels, settings.device):
        return chunk
    what = f"{settings.attack} on {settings.model}, victims" + (" and starts" if attack.starts > 1 else "")
    fits = fitting(asked, memory_of_row(attack, observation), what, settings.device)
    return chunk if fits == asked else fits


def title_of(settings: CellSettings) -> str:
    """A cell in words."""
    noise = f", noise x{settings.noise_scale:g}" if settings.noise_scale != 1 else ""
    return f"{settings.attack} vs {settings.defense} at {settings.tap} on {settings.dataset}{noise}"


def _keep_first(
    rows: int, record: AttackRecord, settings: CellSettings, observation: Observation, truth: Tensor,
    folder: RunFolder, seen: set[str],
) -> None:  # fmt: skip
    key = _attack_key(settings, observation.take(torch.arange(rows)), truth[:rows])
    folder.write_arrays(key, {name: array[:rows] for name, array in _pack(record).items()})
    seen.add(key)


def _attack_key(settings: CellSettings, observation: Observation, truth: Tensor) -> str:
    """Names the result of an attack, which has ``tau``: when it met this truth (R, n, C, H, W)."""
    facts = {
        "observation": observation.fingerprint(),
        "truth": hashlib.sha256(truth.cpu().numpy().tobytes()).hexdigest(),
        "attack": settings.attack,
        "parameters": settings.build_attack().parameters(),
        "engine": settings.engine,
        "dtype": settings.dtype,
        "device": settings.device,
        "threads": threads_of(settings.device),
        "schema": SCHEMA_VERSION,
        "harness": __version__,
        **plugin_source(ATTACKS, settings.attack),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:20]


def _pack(record: AttackRecord) -> dict[str, np.ndarray]:
    arrays = {name: getattr(record.reconstruction, name).numpy() for name in Reconstruction.__dataclass_fields__}
    snapshots = {f"snapshot_{iteration}": images.numpy() for iteration, images in record.snapshots.items()}
    return arrays | snapshots | {"tau": record.tau.numpy()}


def _is_of(arrays: dict[str, np.ndarray], truth: Tensor, classes: int) -> bool:
    """Return whether arrays from a file are a reconstruction of as many images (R, n, C, H, W), with labels below
    ``classes``.

    Their numbers are believed, as those of a finished cell are.
    """
    known = {*Reconstruction.__dataclass_fields__, "tau"}
    shapes = {name: truth.shape[:1] for name in known} | {"images": truth.shape}
    shapes |= {"labels": truth.shape[:2], "tau": truth.shape[:2]}
    for name, array in arrays.items():
        iteration = name.removeprefix("snapshot_")
        snapshot = name != iteration and iteration.isdecimal()
        plain = array.dtype.kind in "fiu" and (snapshot or array.shape == shapes.get(name))
        if not plain or (snapshot and array.shape[1:] != truth.shape[1:]):
            return False
    if not known <= arrays.keys() or not np.isfinite(arrays["images"]).all():
        return False
    limits = {"labels": classes, "stop_reason": len(REASONS)}
    whole = all(arrays[name].dtype.kind in "iu" for name in limits)
    return whole and all(((arrays[name] >= 0) & (arrays[name] < most)).all() for name, most in limits.items())


def _unpack(key: str, arrays: dict[str, np.ndarray]) -> AttackRecord:
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    snapshots = {
        int(name.removeprefix("snapshot_")): tensors.pop(name) for name in list(tensors) if name.startswith("snapshot_")
    }
    tau = tensors.pop("tau")
    return AttackRecord(key, Reconstruction(**tensors), tau, snapshots)
