"""Clusters for real, where their packages are installed: Ray with several nodes, and submitit's own processes."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.base.errors import UsageError
from harness.experiment import cell_settings
from harness.parallel.clusters import device_there, make_part
from harness.parallel.units import Job, Shard

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


@pytest.fixture
def longer(small: Small) -> Small:
    """A run that takes long enough to be disturbed."""
    return (*small[:-2], "--attack-arg", "max_iterations=40", "--threads", "1")


@pytest.fixture
def process(harness: Command, program: str, cluster: Any, longer: Small) -> "subprocess.Popen[str]":
    """The run on the cluster, into ``ray``."""
    where = ("--cluster", "ray", "--cluster-arg", f"address={cluster.address}", "--out", "ray")
    return subprocess.Popen([program, *longer, *where], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def wait_for_a_cell(process: "subprocess.Popen[str]") -> None:
    while not list(Path("ray/cells").glob("*.json")):
        assert process.poll() is None
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("killed", [False, True])
def test_ray_gives_the_same_bytes(
    harness: Command, longer: Small, content: Read, cluster: Any, process: "subprocess.Popen[str]", killed: bool
) -> None:
    if killed:
        # As soon as the first task is done others run, one of them on the node that goes.
        wait_for_a_cell(process)
        cluster.remove_node(cluster.workers[0], allow_graceful=False)
    said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert harness(*longer, "--out", "one").code == 0
    assert content(Path("ray"))[:2] == content(Path("one"))[:2]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_head_that_dies_keeps_what_came_back(
    harness: Command, longer: Small, content: Read, cluster: Any, process: "subprocess.Popen[str]"
) -> None:
    wait_for_a_cell(process)
    cluster.head_node.kill_gcs_server(check_alive=False)
    cluster.head_node.kill_raylet(check_alive=False)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 2, (out, err)
    assert "harness: the Ray cluster was lost; what came back is kept: go on with --resume" in err.splitlines()
    assert harness(*longer, "--out", "ray", "--resume").code == 0
    assert harness(*longer, "--out", "one").code == 0
    assert content(Path("ray"))[:2] == content(Path("one"))[:2]


@pytest.mark.slow
def test_slurm_gives_the_same_bytes(harness: Command, program: str, small: Small, content: Read) -> None:
    """With processes in the place of jobs."""
    pytest.importorskip("submitit")
    where = ("--cluster", "slurm", "--cluster-arg", "executor=local", "--jobs", "2", "--out", "slurm")
    done = subprocess.run([program, *small, *where], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert harness(*small, "--out", "one").code == 0
    assert content(Path("slurm")) == content(Path("one"))


MISTAKES = {
    "no cluster": (("--cluster-arg", "address=auto"), "add --cluster ray or --cluster slurm"),
    "no such cluster": (("--cluster", "kubernetes"), "unknown cluster 'kubernetes'; choose ray or slurm"),
    "a shard of a cluster": (("--cluster", "ray", "--shard", "1/2"), "--shard and --cluster were both given"),
    "no assignment": (("--cluster", "ray", "--cluster-arg", "auto"), "is no key=value; write for example address=auto"),
    "no such key": (("--cluster", "ray", "--cluster-arg", "nodes=3"), "is unknown to ray; it takes address and gpus"),
    "gpus in words": (("--cluster", "ray", "--cluster-arg", "gpus=all"), "gpus must be 0 to 8"),
    "a GPU of Slurm's that is not asked for": (
        ("--cluster", "slurm", "--device", "cuda"),
        "--cluster-arg gpus_per_node=1",
    ),
    "a GPU of Ray's that is not asked for": (
        ("--cluster", "ray", "--device", "cuda", "--cluster-arg", "gpus=0"),
        "--cluster-arg gpus=1",
    ),
    "one GPU of many machines'": (("--cluster", "ray", "--device", "cuda:1"), "cuda:1 is of one machine"),
    "jobs of Ray": (("--cluster", "ray", "--jobs", "4"), "--jobs has no effect on Ray"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_cannot_be_asked_of_a_cluster(harness: Command, small: Small, mistake: str) -> None:
    options, words = MISTAKES[mistake]
    done = harness(*small, *options)
    assert done.code == 2 and words in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize(("cluster", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_package_that_is_not_installed(
    harness: Command, small: Small, monkeypatch: pytest.MonkeyPatch, cluster: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    done = harness(*small, "--cluster", cluster)
    assert done.code == 2 and f"pip install 'gradient-leakage-harness[{cluster}]'" in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "options", "words"),
    [
        ("ray", ("ray", "--cluster-arg", "address=127.0.0.1:1"), "no Ray cluster at '127.0.0.1:1'"),
        ("submitit", ("slurm",), "no jobs could be sent"),
        ("submitit", ("slurm", "--cluster-arg", "executor=local", "--cluster-arg", "colour=red"), "colour"),
    ],
)
def test_a_cluster_that_is_not_there(harness: Command, small: Small, package: str, options: Small, words: str) -> None:
    pytest.importorskip(package)
    done = harness(*small, "--cluster", *options)
    assert done.code == 2 and words in done.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("device", "cluster", "given", "there"),
    [
        ("auto", "ray", [], "cpu"), ("auto", "ray", ["gpus=0.5"], "cuda"), ("cuda", "ray", [], "cuda"),
        ("auto", "slurm", ["partition=gpu"], "cpu"), ("auto", "slurm", ["gres=gpu:1"], "cuda"),
        ("cuda", "slurm", ["gpus_per_node=1"], "cuda"), ("cpu", "slurm", ["gpus_per_node=1"], "cpu"),
        ("auto", "slurm", ["executor=local", "gpus_per_node=1"], "cpu"),
    ],
)  # fmt: skip
def test_the_device_is_that_of_the_tasks_not_of_who_sends_them(
    device: str, cluster: str, given: list[str], there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_there(device, cluster, given) == there


def test_a_task_without_the_gpu_of_its_cells_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("hush", "use_threads", "share_slurm_node"):  # which last as long as a process
        monkeypatch.setattr(f"harness.parallel.clusters.{name}", lambda *_: None)
    cell = cell_settings(dataset="digits", model="logistic", attack="analytic", device="cuda")
    with pytest.raises(UsageError, match="no CUDA device is available here"):
        make_part([cell], Job(tmp_path, tmp_path, 0.0, 8, 1, None), Shard(1, 1))
