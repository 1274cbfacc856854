"""Workers that a cluster put on one node share its memory, and those of other nodes do not."""

from types import SimpleNamespace
from typing import Any

import pytest

from harness.base import limits
from harness.parallel.clusters import share_node, share_slurm_node

FREE = 12 * 2**30
NODES = [
    {"NodeID": "small", "Resources": {"CPU": 4.0}},
    {"NodeID": "large", "Resources": {"CPU": 64.0, "GPU": 2.0, "memory": 1e11}},
]


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 GB are free on it; used memory is left out."""
    for name, value in (("_workers", 1), ("_on_device", 1)):
        monkeypatch.setattr(limits, name, value)
    for name, free in (("_available", FREE), ("_left_in_group", None), ("_left_of_addresses", None)):
        monkeypatch.setattr(limits, name, lambda free=free: free)
    monkeypatch.setattr(limits, "_used", lambda column: 0)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    for name in ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE", "SUBMITIT_EXECUTOR"):
        monkeypatch.delenv(name, raising=False)


def shares() -> tuple[float, int]:
    """This process's part of what is free, and how many share a device."""
    free = limits.free_memory()
    assert free is not None
    return FREE / free, FREE // limits.own_share_of_device(FREE)


@pytest.mark.parametrize(
    ("place", "taken", "tasks", "shared"),
    [
        ("small", {"CPU": 1.0}, 100, (4, 4)),
        ("small", {"CPU": 1.0}, 3, (3, 3)),
        ("small", {"CPU": 3.0}, 100, (1, 1)),
        ("large", {"CPU": 1.0}, 100, (64, 64)),
        ("large", {"CPU": 1.0, "GPU": 0.25}, 100, (8, 4)),
        ("large", {"CPU": 1.0, "GPU": 2.0}, 100, (1, 1)),
        ("large", {"CPU": 1.0, "GPU": 0.25}, 2, (2, 2)),
    ],
)
def test_tasks_of_ray(place: str, taken: dict[str, float], tasks: int, shared: tuple[int, int]) -> None:
    own = SimpleNamespace(get_node_id=lambda: place, get_assigned_resources=lambda: taken)
    ray: Any = SimpleNamespace(get_runtime_context=lambda: own, nodes=lambda: NODES)
    share_node(ray, tasks)
    assert shares() == shared


@pytest.mark.parametrize(
    ("environment", "jobs", "shared"),
    [
        ({"SUBMITIT_EXECUTOR": "local"}, 3, (3, 3)),
        ({"SLURM_CPUS_ON_NODE": "2"}, 3, (3, 1)),
        ({"SLURM_CPUS_ON_NODE": "2"}, 100, (4, 1)),
        ({"SLURM_CPUS_ON_NODE": "8"}, 100, (1, 1)),
        ({"SLURM_CPUS_ON_NODE": "2", "SLURM_MEM_PER_NODE": "2048"}, 100, (6, 1)),
        ({"SLURM_CPUS_ON_NODE": "2", "SLURM_MEM_PER_CPU": "512"}, 100, (12, 1)),
        ({"SLURM_CPUS_ON_NODE": "2", "SLURM_MEM_PER_NODE": "0"}, 100, (4, 1)),
        ({}, 100, (1, 1)),
    ],
)
def test_jobs_of_slurm(
    environment: dict[str, str], jobs: int, shared: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    share_slurm_node(jobs)
    assert shares() == shared
