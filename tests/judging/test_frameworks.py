"""Captures on Flower and NVFlare themselves, from the package index, each beside this project in an environment."""

import html
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from harness.attacks import ATTACKS
from harness.attacks.suites import members as members_of
from harness.base.errors import UsageError
from harness.cli import run
from harness.judging.capture import read_capture
from harness.judging.parts import earlier_of

pytestmark = pytest.mark.slow
CLIENTS = 4
OF_IMAGES = [name for name in members_of(["auto"]) if ATTACKS[name].reads != "texts"]
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
LOOPBACK = "127.0.0.1"


class Client(NamedTuple):
    """How an app's client trains, in the words of its variable CLIENT."""

    examples: int
    batch: int
    epochs: int

    def __str__(self) -> str:
        return ",".join(map(str, self))


OWN = Client(16, 8, 2)


@dataclass(frozen=True)
class Framework:
    """An environment with a framework and this project, and where an app runs that keeps all it writes there."""

    programs: Path
    folder: Path

    def run(self, name: str, *arguments: str) -> None:
        """Run a program of the environment to its end."""
        subprocess.run(self.program(name, *arguments), check=True, timeout=900, **self.place)

    def timed(self, what: str, name: str, *arguments: str) -> None:
        """Run a program, and print how long it took."""
        start = time.monotonic()
        self.run(name, *arguments)
        print(f"{what}: {time.monotonic() - start:.0f} s")

    def judged(self, folders: list[Path], network: str, optimizer: str, client: Client, *options: str) -> Any:
        """The document of captures that are given their truth: what was read from the training is how it was, so that
        with the truth it gives what was sent, and all checks hold."""
        module = imported(self.folder / "app" / f"{network}.py")
        for folder in folders:
            record = read_capture(folder).record
            assert (record.model, record.image_shape, record.classes) == (f"{network}:Net()", (3, 32, 32), 10)
            assert (record.optimizer, record.learning_rate, record.state) == (optimizer, 0.01, "new")
            steps = client.epochs * -(-client.examples // client.batch)
            found = (record.examples or record.truths, record.batch_size, record.epochs or 1, record.local_steps)
            assert found == (client.examples, client.batch, client.epochs, steps)
            own = nearest(folder, module, optimizer, len(folders) + 1, client.epochs)  # sites count from 1
            images, labels = module.examples_of(own)[:]
            truth = images.repeat(client.epochs, 1, 1, 1), labels.repeat(client.epochs)
            np.savez(folder / "truth.npz", images=truth[0].numpy(), labels=truth[1].numpy())
        prior = module.examples_of(99, 400)[:]
        np.savez(self.folder / "prior.npz", images=prior[0].numpy(), labels=prior[1].numpy())
        judge = "-m", "harness", "judge", *map(str, folders), "--prior", "prior.npz", *options
        self.timed("judge", "python", *judge, "--out", "out")
        document = json.loads((self.folder / "out" / "judged.json").read_text())
        assert {one["outcome"] for one in document["checks"]} == {"holds"}
        assert any("truth explains" in one["name"] for one in document["checks"])
        return document

    def assert_page(self, folders: list[Path], network: str, optimizer: str, client: Client) -> None:
        """Within ten minutes the page says all that a client of several steps gives away, and what was left out."""
        document = self.judged(folders, network, optimizer, client, "--attack", "auto", "--budget", "8m")
        labels, members, alone = document["measured"]
        if optimizer == "adam":
            assert labels["p_value"] is None and "cannot be read" in labels["said"]
        else:
            assert labels["p_value"] < 0.001
        assert members["count"] == len(folders) * client.examples and members["p_value"] < 0.001 and members["held"]
        assert alone["held"] and f"{alone['by']} leaks, as it must" in alone["said"]
        lines = document["budget"]["attacks"]
        asked = {one["attack"]: one for one in lines if not one["group"]}
        assert list(asked) == OF_IMAGES and all(one["captures"] or one["reason"] for one in lines)
        assert any(one["captures"] and name not in ("identify", "membership") for name, one in asked.items())
        self.run("python", "-m", "harness", "report", "out", "--out", "page.html")
        page = html.unescape((self.folder / "page.html").read_text())
        assert all(one["said"] in page for one in document["measured"])
        assert all(one["reason"] in page for one in lines if one["reason"])

    def assert_leaks(self, folders: list[Path], network: str, optimizer: str) -> None:
        """One step on one image gives its images away."""
        options = "--attack", "inverting_gradients,identify"
        document = self.judged(folders, network, optimizer, Client(1, 1, 1), *options)
        assert {row["defense"]: row["verdict"] for row in document["results"]["summary"]} == {"none": "leaks"}

    def program(self, name: str, *arguments: str) -> list[str]:
        """A command."""
        return [str(self.programs / name), *arguments]

    @property
    def place(self) -> dict[str, Any]:
        """Where and how programs are started."""
        own = {"PYTHONPATH": str(self.folder / "app"), "CAPTURES": str(self.folder), "FLWR_HOME": str(self.folder),
               "FLWR_TELEMETRY_ENABLED": "0", "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}"}  # fmt: skip
        return {"cwd": self.folder, "env": {**os.environ, **own}}

    def assert_judged(self, captures: str, count: int) -> None:
        """So many captures are there, and plausible."""
        folders = sorted(map(str, self.folder.glob(captures)))
        assert len(folders) == count
        self.run("python", "-m", "harness", "judge", *folders, "--prior", "digits", "--attack", "cpl", "--out", "out")
        (made,) = json.loads((self.folder / "out" / "judged.json").read_text())["estimates"]
        assert made["estimates"] == ["plausibly reconstructed"] * count


def imported(file: Path) -> Any:
    """A module of an app."""
    found = importlib.util.spec_from_file_location(file.stem, file)
    assert found and found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def nearest(folder: Path, module: Any, optimizer: str, clients: int, epochs: int) -> int:
    """The client whose training gives what was captured; the same training without the capture gives the same."""
    capture, found = read_capture(folder), {}
    for client in range(clients):
        network = module.Net()
        network.load_state_dict({name: torch.tensor(capture.before[name]) for name in network.state_dict()})
        kind: Any = torch.optim.Adam if optimizer == "adam" else partial(torch.optim.SGD, momentum=0.9)
        own, loader = kind(network.parameters(), lr=0.01), module.loader_of(client)
        for images, labels in [*loader] * epochs:
            own.zero_grad()
            torch.nn.functional.cross_entropy(network(images), labels).backward()
            own.step()
        moved = network.state_dict().items()
        found[client] = max(float(abs(one.numpy() - capture.moved[name]).max()) for name, one in moved)
    client = min(found, key=lambda one: found[one])
    assert found[client] < 1e-5  # threads may change last bits
    return client


def installed(package: str, folder: Path) -> Path:
    """A fresh environment with a package from the index; returns where its programs are."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    packages = sysconfig.get_paths(vars={"base": str(folder)})["purelib"]
    # What this environment has is there too; what the framework needs comes first. NVFlare sends modules of a checkout
    # to its clients, but not those that they import in turn. So a copy of the project is installed, as users do it.
    source = folder.parent / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "harness", "attacks", "defenses", "datasets", "reports"):
        subprocess.run(["cp", "-r", str(ROOT / name), str(source)], check=True)
    install = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, "--no-deps", source], check=True)
    beside = f"import site; site.addsitedir({sysconfig.get_paths()['purelib']!r})"
    Path(packages, "beside.pth").write_text(beside)
    subprocess.run([*install, package], check=True)
    return folder / "bin"


@pytest.fixture(scope="module")
def with_flower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed("flwr[simulation]", tmp_path_factory.mktemp("flower") / "venv")


@pytest.fixture(scope="module")
def with_nvflare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed("nvflare", tmp_path_factory.mktemp("nvflare") / "venv")


@pytest.fixture
def flower(with_flower: Path, tmp_path: Path) -> Framework:
    shutil.copytree(EXAMPLES / "flower", tmp_path / "app")
    return Framework(with_flower, tmp_path)


def test_a_simulated_federation_on_flower_is_judged(flower: Framework) -> None:
    flower.run("python", "app/federation.py")
    for side in ("client", "server"):
        flower.assert_judged(f"{side}-captures/*", CLIENTS)


@pytest.mark.parametrize(("noise", "refuted"), [("4", False), ("0", True)])
def test_canaries_of_a_whole_flower_job_bound_its_epsilon(
    flower: Framework, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], noise: str, refuted: bool
) -> None:
    """The noise of Flower's own server, at what is proven of a multiplier of 4 over three rounds, and without it."""
    assert (
        run(["account", "--sigma", "4", "--steps", "3", "--sampling-rate", "1", "--accountant", "pld", "--json"]) == 0
    )
    (proven,) = json.loads(capsys.readouterr().out)["rows"]
    monkeypatch.setenv("NOISE", noise)
    flower.run("python", "app/canary_federation.py")
    assert len(list(flower.folder.glob("canary-captures/round-*"))) == 4 * 34
    asked = "--seed", "1234", "--canaries", "30", "--guesses", "20", "--claimed-epsilon", str(proven["epsilon"])
    assert run(["audit", "--planted", str(flower.folder / "canary-captures"), *asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rounds"], found["refuted"]) == (3, refuted)
    assert found["correct"] == 20 if refuted else found["lower_bound"] < proven["epsilon"]


def test_a_federation_of_several_processes_on_flower_is_judged(flower: Framework) -> None:
    """A link, four nodes and ``flwr run``, as a federation is deployed, on this machine alone."""
    port = free_port()
    address = f"{LOOPBACK}:{port}"
    (flower.folder / "config.toml").write_text(f'[superlink.here]\naddress = "{address}"\ninsecure = true\n')
    link = ("--insecure", "--disable-runtime-dependency-installation", "--host", LOOPBACK, "--port", str(port))
    with running(flower.program("flower-superlink", *link), flower.place) as superlink:
        await_port(port, superlink)
        with nodes(flower, address):
            flower.run("flwr", "run", "app", "here", "--stream")
    for side in ("client", "server"):
        flower.assert_judged(f"{side}-captures/*", CLIENTS)


def test_a_simulated_federation_on_nvflare_is_judged(with_nvflare: Path, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "nvflare", tmp_path / "app")
    flare = Framework(with_nvflare, tmp_path)
    flare.run("python", "app/job.py")
    flare.assert_judged("round-0-client-site-*", 2)


# Flower's quickstart and NVFlare's hello-pt with one line more, with several clients in as many steps as their settings
# make, and as the control of that in one step on one image each.
JOBS = [("sgd", OWN, 2), ("adam", OWN, 2), ("sgd", Client(1, 1, 1), 8)]


@pytest.mark.parametrize(("optimizer", "client", "clients"), JOBS)
def test_the_quickstart_of_flower_with_one_line_more_is_judged(
    flower: Framework, monkeypatch: pytest.MonkeyPatch, optimizer: str, client: Client, clients: int
) -> None:
    for name, value in (("OPTIMIZER", optimizer), ("CLIENT", client), ("CLIENTS", clients)):
        monkeypatch.setenv(name, str(value))
    flower.timed("the federation", "python", "app/quickstart_federation.py")
    folders = sorted(flower.folder.glob("quickstart-captures/*"))
    assert len(folders) == clients
    check = flower.assert_leaks if client.examples == 1 else partial(flower.assert_page, client=client)
    check(folders, "quickstart", "adam" if optimizer == "adam" else "sgd:momentum=0.9")


@pytest.mark.parametrize(("client", "clients"), [(OWN, 2), (Client(1, 1, 1), 8)])
def test_a_hello_job_of_nvflare_with_one_filter_more_is_judged(
    with_nvflare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: Client, clients: int
) -> None:
    """Its momentum goes on in the second round. After one step that is known and taken away, else it is refused."""
    shutil.copytree(EXAMPLES / "nvflare", tmp_path / "app")
    monkeypatch.setenv("CLIENT", str(client))
    monkeypatch.setenv("CLIENTS", str(clients))
    flare = Framework(with_nvflare, tmp_path)
    flare.timed("the job", "python", "app/hello_job.py")
    folders = sorted(tmp_path.glob("round-0-client-site-*"))
    assert len(folders) == len(list(tmp_path.glob("round-1-client-site-*"))) == clients
    first, second = (tmp_path / f"round-{number}-client-site-1" for number in (0, 1))
    if client.examples == 1:
        assert [*earlier_of([read_capture(first), read_capture(second)])] == [second]
    else:
        with pytest.raises(UsageError, match="carried over from an earlier round"):
            read_capture(second)
    check = flare.assert_leaks if client.examples == 1 else partial(flare.assert_page, client=client)
    check(folders, "hello_net", "sgd:momentum=0.9")


@contextmanager
def nodes(flower: Framework, address: str, number: int = 0) -> Iterator[None]:
    """So many supernodes as there are clients; they give up on their own where the link is gone."""
    if number == CLIENTS:
        yield
        return
    which = ("--node-config", f"partition-id={number}", "--port", str(free_port()), "--max-wait-time", "60")
    command = flower.program("flower-supernode", "--insecure", "--superlink", address, *which)
    with running(command, flower.place), nodes(flower, address, number + 1):
        yield


@contextmanager
def running(command: list[str], place: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a group of its own, which ends with all that it started."""
    process = subprocess.Popen(command, start_new_session=True, **place)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=20)


def free_port() -> int:
    with socket.socket() as one:
        one.bind((LOOPBACK, 0))
        return one.getsockname()[1]


def await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Until somebody listens there."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, "the link ended"
        with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
            return
        time.sleep(0.5)
    raise AssertionError("nobody listens")
