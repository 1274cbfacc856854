"""Runs the attack of a cell, once per distinct observation, and keeps what it made on disk.

Rows are independent, so the first victims of a large cell are the whole of a small one: they are kept under the small
one's key too, which spares an undefended cell's victims a second attack as somebody's positive control.
"""

import hashlib
import json
import logging
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from harness import SCHEMA_VERSION
from harness.attacks import Reconstruction, run_attack, run_reference
from harness.evaluation.controls import smaller
from harness.evaluation.measure import strict_rule
from harness.evaluation.observe import Scene
from harness.evaluation.recorder import Recorder
from harness.experiment import CellSettings
from harness.reports.progress import progress
from harness.results import RunFolder
from harness.surfaces import Observation

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AttackRecord:
    """A reconstruction with what the recorder saw of it.

    ``tau`` (R, n): first strict iteration or the cap. ``snapshots``: iteration to images of the first rows.
    """

    key: str
    reconstruction: Reconstruction
    tau: Tensor
    snapshots: dict[int, Tensor]


def attack_scene(
    settings: CellSettings, scene: Scene, folder: RunFolder, chunk: int, reuse: bool, seen: set[str]
) -> AttackRecord:
    """Attacks a scene, or reads the result of an equal observation attacked before.

    Args:
        settings: which attack, engine and precision.
        scene: the observation and, for the recorder only, the truth.
        folder: where reconstructions are kept.
        chunk: rows attacked together.
        reuse: whether files of earlier runs may be used (``--resume``).
        seen: keys already attacked in this run; updated.
    """
    attack = settings.build_attack()
    key = _attack_key(settings, scene.observation)
    if reuse or key in seen:
        stored = folder.read_arrays(key)
        if stored is not None:
            seen.add(key)
            return _unpack(key, stored)
    rows = scene.observation.rows
    truth = scene.truth.images.reshape(rows, -1, *scene.dataset.image_shape)
    recorder = Recorder(truth, attack.restarts, strict_rule(scene.dataset))
    title = f"{settings.attack} vs {settings.defense} at {settings.tap} on {settings.dataset}"
    if settings.noise_scale != 1:
        title += f", noise x{settings.noise_scale:g}"
    with progress(title, rows) as bar:
        if settings.engine == "reference":
            reconstruction = run_reference(attack, scene.observation, recorder, bar.advance)
        else:
            reconstruction = run_attack(attack, scene.observation, chunk, recorder, bar.advance)
    record = AttackRecord(
        key,
        reconstruction,
        recorder.tau(reconstruction.restart, attack.max_iterations),
        recorder.snapshots(reconstruction.restart, reconstruction.images),
    )
    folder.write_arrays(key, _pack(record))
    seen.add(key)
    _keep_first(record, settings, scene, folder, seen)
    return record


def _keep_first(record: AttackRecord, settings: CellSettings, scene: Scene, folder: RunFolder, seen: set[str]) -> None:
    """Stores the rows that a control of this cell would attack as the result of attacking them alone."""
    rows = smaller(settings).victims * (scene.observation.rows // len(scene.truth.labels))
    if rows == scene.observation.rows:
        return
    key = _attack_key(settings, scene.observation.take(torch.arange(rows)))
    folder.write_arrays(key, {name: array[:rows] for name, array in _pack(record).items()})
    seen.add(key)


def _attack_key(settings: CellSettings, observation: Observation) -> str:
    facts = {
        "observation": observation.fingerprint(),
        "attack": settings.attack,
        "parameters": settings.build_attack().parameters(),
        "engine": settings.engine,
        "dtype": settings.dtype,
        "device": settings.device,
        "schema": SCHEMA_VERSION,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:20]


def _pack(record: AttackRecord) -> dict[str, np.ndarray]:
    arrays = {name: getattr(record.reconstruction, name).numpy() for name in Reconstruction.__dataclass_fields__}
    snapshots = {f"snapshot_{iteration}": images.numpy() for iteration, images in record.snapshots.items()}
    return arrays | snapshots | {"tau": record.tau.numpy()}


def _unpack(key: str, arrays: dict[str, np.ndarray]) -> AttackRecord:
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    snapshots = {
        int(name.removeprefix("snapshot_")): tensors.pop(name) for name in list(tensors) if name.startswith("snapshot_")
    }
    tau = tensors.pop("tau")
    return AttackRecord(key, Reconstruction(**tensors), tau, snapshots)
