"""Clusters for real, where their packages are installed: a Ray cluster of several nodes, and submitit's own processes."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
Small = tuple[str, ...]
Read = Callable[[Path], Any]


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without cores, and three nodes of one core each."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    made.workers = [made.add_node(num_cpus=1) for _ in range(3)]
    yield made
    made.shutdown()


def on_the_cluster(cluster: Any, arguments: Small, out: str) -> "subprocess.Popen[str]":
    command = shutil.which("harness", path=Path(sys.executable).parent)
    assert command is not None
    where = ("--cluster", "ray", "--cluster-arg", f"address={cluster.address}", "--out", out)
    return subprocess.Popen([command, *arguments, *where], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("killed", [False, True])
def test_ray_gives_the_same_bytes(harness: Command, small: Small, content: Read, cluster: Any, killed: bool) -> None:
    longer = (*small[:-2], "--attack-arg", "max_iterations=40", "--threads", "1")
    process = on_the_cluster(cluster, longer, "ray")
    if killed:
        # As soon as the first task is done others run, one of them on the node that goes.
        while not list(Path("ray/cells").glob("*.json")):
            assert process.poll() is None
            time.sleep(0.05)
        cluster.remove_node(cluster.workers[0], allow_graceful=False)
    said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert harness(*longer, "--out", "one").code == 0
    assert content(Path("ray"))[:2] == content(Path("one"))[:2]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_head_that_dies_keeps_what_came_back(harness: Command, small: Small, content: Read, cluster: Any) -> None:
    longer = (*small[:-2], "--attack-arg", "max_iterations=40", "--threads", "1")
    process = on_the_cluster(cluster, longer, "ray")
    while not list(Path("ray/cells").glob("*.json")):
        assert process.poll() is None
        time.sleep(0.05)
    cluster.head_node.kill_gcs(check_alive=False)
    cluster.head_node.kill_raylet(check_alive=False)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 2 and "--resume" in err.splitlines()[-1], (out, err)
    assert harness(*longer, "--out", "ray", "--resume").code == 0
    assert harness(*longer, "--out", "one").code == 0
    assert content(Path("ray"))[:2] == content(Path("one"))[:2]
