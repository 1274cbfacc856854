"""Our attacks beside two public implementations, on the same victims.

    git clone https://github.com/JonasGeiping/invertinggradients && git clone https://github.com/mit-han-lab/dlg
    nice python benchmarks/peers.py --inverting-gradients invertinggradients --dlg dlg --noise .01

Both peers run from the user's own checkouts, as they ship, and are handed what our attacks are handed: every victim's
network, its gradient, the shape of an image and the number of classes. No truth reaches them. The peer of Inverting
Gradients works, as it does at home, on images that are normalised by its own constants of the dataset, and infers
labels by its own rule.
"""

import harness  # noqa: F401  (before torch, which reads at its start what this sets)

# isort: split
import argparse
import ast
import contextlib
import copy
import importlib.util
import io
import sys
import time
import types
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.attacks import ATTACKS, Attack, expanded, run_attack
from harness.base.building import build
from harness.base.errors import UsageError
from harness.datasets import data_root
from harness.evaluation.measure import measure
from harness.evaluation.observe import Scene, Stage
from harness.experiment import cell_settings, usual_prior
from harness.gate.comparing import fisher_test

# Of the peer's constants, those of a dataset.
CONSTANTS = {"mnist-sample": "mnist", "mnist": "mnist", "cifar10-sample": "cifar10", "cifar10": "cifar10"}


# DLG; Inverting Gradients with the settings of its script, and with its class's defaults.
PEERS = ("dlg", "ig-script", "ig-class")


@dataclass(frozen=True)
class Handed:
    """What an attacker is handed of one victim.

    Attributes:
        network: takes images (B, C, H, W) in [0, 1]; holds the victim's weights.
        gradient: one tensor per parameter of the network, in its order.
        image_shape: (C, H, W).
    """

    network: nn.Module
    gradient: list[Tensor]
    image_shape: tuple[int, ...]
    classes: int


Peer = Callable[[Handed], Tensor]
"""Makes an image (1, C, H, W) in [0, 1] of what it is handed."""


@dataclass(frozen=True)
class Outcome:
    """Of one attack: strict successes, the RMSE of every victim, and seconds for all of them."""

    name: str
    strict: int
    rmse: list[float]
    seconds: float

    def __str__(self) -> str:
        victims = len(self.rmse)
        return (
            f"{self.name}: {self.strict} of {victims} strict, median RMSE {median(self.rmse):.3f}, "
            f"{self.seconds / victims:.2f} s per victim"
        )


class OfNormalised(nn.Module):
    """A network for images that were normalised, with the same parameters and the same gradients."""

    def __init__(self, network: nn.Module, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images * self.deviation + self.mean)


def handed(scene: Scene) -> Iterator[Handed]:
    """What a peer is handed, victim by victim."""
    seen = scene.observation
    for weights, gradient in zip(seen.weights, seen.target, strict=True):
        network = copy.deepcopy(seen.model.plain(weights))
        tensors = [part.clone() for part in seen.model.layout.split(gradient).values()]
        yield Handed(network, tensors, seen.model.image_shape, seen.model.classes)


def inverting_gradients(checkout: Path, constants: str, from_script: bool, iterations: int | None) -> Peer:
    """The peer ``invertinggradients``: the class's own defaults, or those of its script ``reconstruct_image.py``."""
    sys.path.insert(0, str(checkout))
    # All it needs of a package that is not installed here, for the download of a dataset that is not used.
    moves = types.ModuleType("six.moves")
    moves.urllib = urllib  # type: ignore[attr-defined]
    sys.modules.setdefault("six.moves", moves)
    import inversefed

    config = dict(inversefed.reconstruction_algorithms.DEFAULT_CONFIG)
    if from_script:
        chosen = inversefed.options().parse_args([])
        config |= {key: getattr(chosen, key) for key in ("signed", "boxed", "cost_fn", "restarts")}
        config |= {"optim": chosen.optimizer, "total_variation": chosen.tv, "max_iterations": 24_000}
    if iterations:
        config["max_iterations"] = iterations
    mean, deviation = (
        torch.tensor(getattr(inversefed.consts, f"{constants}_{name}"))[:, None, None] for name in ("mean", "std")
    )

    def attack(victim: Handed) -> Tensor:
        network = OfNormalised(victim.network, mean, deviation)
        machine = inversefed.GradientReconstructor(network, (mean, deviation), dict(config), num_images=1)
        with contextlib.redirect_stdout(io.StringIO()):
            made, _ = machine.reconstruct(victim.gradient, None, img_shape=victim.image_shape)
        return made * deviation + mean

    return attack


def dlg(checkout: Path) -> Peer:
    """The peer ``dlg``: of its script, which begins with a download, the attack alone is executed, unchanged."""
    attack_of_script = compile(_the_attack((checkout / "main.py").read_text()), str(checkout / "main.py"), "exec")
    found = importlib.util.spec_from_file_location("dlg_utils", checkout / "utils.py")
    assert found and found.loader
    utils = importlib.util.module_from_spec(found)
    found.loader.exec_module(utils)

    def nothing(*_: object) -> None:
        """Stands for pictures of how far it is."""

    def attack(victim: Handed) -> Tensor:
        names: dict[str, Any] = {
            "torch": torch, "F": functional, "device": "cpu", "tt": nothing, "history": [],
            "plt": types.SimpleNamespace(imshow=nothing), "criterion": utils.cross_entropy_for_onehot,
            "net": victim.network, "original_dy_dx": victim.gradient,
            # The script asks these for their sizes only.
            "gt_data": torch.zeros(1, *victim.image_shape), "gt_onehot_label": torch.zeros(1, victim.classes),
        }  # fmt: skip
        with contextlib.redirect_stdout(io.StringIO()):
            exec(attack_of_script, names)
        return names["dummy_data"].detach()

    return attack


def _the_attack(script: str) -> ast.Module:
    """From the script's first dummy image to the end of its first loop."""
    statements = ast.parse(script).body
    first = next(i for i, node in enumerate(statements) if _assigns(node, "dummy_data"))
    last = next(i for i, node in enumerate(statements) if i > first and isinstance(node, ast.For))
    return ast.Module(statements[first : last + 1], [])


def _assigns(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets)


def judged(name: str, scene: Scene, made: Tensor, seconds: float) -> Outcome:
    """The first victims by the rule every attack here is judged by; a diverged image (NaN) is grey, and counts."""
    made = torch.where(made.isfinite(), made, 0.5)
    measured = measure(scene.dataset, scene.truth.images[: len(made)].flatten(0, 1), made, "not asked for")
    return Outcome(name, int(measured.success["strict"].sum()), measured.metrics["rmse"].tolist(), seconds)


def of_peer(name: str, peer: Peer, scene: Scene) -> Outcome:
    """A peer's attacks, one victim after the other as it ships; says what came of them so far."""
    made, began = torch.empty(0), time.perf_counter()
    for index, victim in enumerate(handed(scene)):
        torch.manual_seed(index)
        with torch.backends.mkldnn.flags(enabled=False):  # which takes longer over one small image
            made = torch.cat([made, peer(victim)])
        outcome = judged(f"peer {name}", scene, made, time.perf_counter() - began)
        print(f"  {outcome}", flush=True)
    return outcome


def of_ours(names: list[str] | None, scene: Scene) -> Outcome:
    """Members of ``auto`` (None: all), printed one by one, and what stands for them: the strongest, as in a verdict."""
    outcomes = []
    for member in expanded([("auto", {})]):
        attack = build(ATTACKS, member.attack, member.arguments)
        if not isinstance(attack, Attack) or (names and member.attack not in names):
            continue
        began = time.perf_counter()
        try:
            made = run_attack(attack, scene.observation.known_to(attack.tier))
        except UsageError as error:
            print(f"  {member.attack}: {error}", flush=True)
            continue
        outcomes.append(judged(member.attack, scene, made.images.flatten(0, 1), time.perf_counter() - began))
        print(outcomes[-1], flush=True)
    best = max(outcomes, key=lambda outcome: outcome.strict)
    return Outcome(f"strongest of ours ({best.name})", best.strict, best.rmse, sum(one.seconds for one in outcomes))


def main() -> None:
    """Prints every outcome as soon as it is there, peers with the p-value of ours being weaker than they."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inverting-gradients", type=Path, required=True, metavar="CHECKOUT")
    parser.add_argument("--dlg", type=Path, required=True, metavar="CHECKOUT")
    parser.add_argument("--dataset", choices=CONSTANTS, default="mnist-sample")
    parser.add_argument("--noise", type=float, default=0.0, help="std on the gradient; 0 is no defense")
    parser.add_argument("--victims", type=int, default=32)
    parser.add_argument("--ours", nargs="+", help="members of auto (all)")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument("--iterations", type=int, help="of ig-script instead of its 24,000, of ig-class of its 4,800")
    asked = parser.parse_args()
    torch.set_num_threads(1)

    noise = {"defense": "noise", "defense_args": {"applies_to": "gradient", "amount": asked.noise}}
    settings = cell_settings(
        dataset=asked.dataset, victims=asked.victims, prior=usual_prior(["auto"]), **(noise if asked.noise else {})
    )
    scene = Stage(data_root(None), 128).set(settings)
    print(
        f"{asked.victims} victims of {asked.dataset}, T2.step, noise of std {asked.noise:g}; one thread each",
        flush=True,
    )
    ours = of_ours(asked.ours, scene)
    print(ours, flush=True)
    for name in asked.peers:
        if name == "dlg":
            peer = dlg(asked.dlg)
        else:
            constants, script = CONSTANTS[asked.dataset], name == "ig-script"
            peer = inverting_gradients(asked.inverting_gradients, constants, script, asked.iterations)
        outcome = of_peer(name, peer, scene)
        weaker = fisher_test(outcome.strict, asked.victims, ours.strict, asked.victims).down
        print(f"{outcome}; ours weaker: p = {weaker:.3g}", flush=True)


if __name__ == "__main__":
    main()
