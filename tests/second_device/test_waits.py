"""How often the host waits for a GPU: each read of a number there is a wait for all that was asked of it before."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.attacks.engine import run_attack
from harness.evaluation.observe import Stage
from harness.experiment import cell_settings
from harness.training.loop import fitted
from harness.training.rounds import Training
from harness.training.settings import train_settings

pytestmark = pytest.mark.second_device


def counted(work: Callable[[], object]) -> Counter[str]:
    import second_device

    device = second_device.install()
    device.start()
    try:
        work()
    finally:
        counts = device.stop()
    return Counter(counts)


def waits(counts: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if name.startswith("sync") and count}


@pytest.mark.parametrize("victims", [8, 64])
@pytest.mark.parametrize(
    ("attack", "defense", "model", "kernels"),
    [
        ("cpl", "none", "logistic", 3700), ("cpl", "fed_cdp", "logistic", 3700),
        ("inverting_gradients", "fed_cdp", "mlp", 200), ("map", "fed_cdp", "logistic", 5000),
    ],
)  # fmt: skip
def test_an_attack_waits_once_in_an_outer_iteration(
    tmp_path: Path, attack: str, defense: str, model: str, kernels: int, victims: int
) -> None:
    """Counted in iterations 5 to 25; a step of L-BFGS of all victims, its line search included, is one of them."""
    settings = cell_settings(
        dataset="digits", model=model, victims=victims, tap="T2.step", attack=attack, defense=defense, device="cuda",
        **({"prior": "auto", "attack_args": {"label_starts": 1}} if attack == "map" else {}),
    )  # fmt: skip
    observation = Stage(tmp_path, 128).set(settings).observation
    built = settings.build_attack()

    def run(iterations: int) -> Counter[str]:
        # Nobody stops: rows that do are moved together, which is another kind of work.
        one = replace(built, max_iterations=iterations, patience=0, **({} if attack == "map" else {"loss_stop": 0.0}))
        return counted(lambda: run_attack(one, observation, 1024))

    more = run(25)
    more.subtract(run(5))
    found = waits(more)
    assert sum(found.values()) <= 20, {name: count / 20 for name, count in found.items()}
    launched = sum(count for name, count in more.items() if name.startswith("kernel")) / 20
    assert kernels / 2 < launched <= kernels, "of an outer iteration, however many victims there are"


@pytest.mark.parametrize("defense", ["none", "fed_sdp", "fed_cdp", "fed_acdp", "dp_local"])
@pytest.mark.parametrize("clients", [5, 20])
def test_training_waits_less_than_once_in_ten_local_steps(tmp_path: Path, defense: str, clients: int) -> None:
    def play(steps: int) -> Counter[str]:
        settings = train_settings(
            dataset="mnist-sample", model="cnn", defense=defense, clients=clients, clients_per_round=clients, rounds=1,
            local_steps=steps, batch_size=5, examples=10, split="iid", device="cuda",
        )  # fmt: skip
        training = Training(fitted(settings, tmp_path), tmp_path)
        return counted(lambda: training.play_round(0, 25))

    more = play(12)
    more.subtract(play(2))
    found = waits(more)
    assert sum(found.values()) <= 1, {name: count / 10 for name, count in found.items()}
