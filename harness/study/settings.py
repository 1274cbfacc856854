"""What a frontier is made of: data, defenses, levels of noise, the federation that is trained, and who attacks it."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.base.errors import UsageError
from harness.base.ranges import Count, Delta, Positive
from harness.experiment import usual_defense
from harness.federation.taps import SURFACES, Tap
from harness.scoring.verdict import VICTIMS_NEEDED
from harness.training.settings import BatchSampling, ClientSampling

#: Named defenses with what differs from their defaults.
Defenses = tuple[tuple[str, dict[str, Any]], ...]

_NOISE = ("sigma", "amount", "noise_multiplier", "relative_noise_stddev", "sensitivity", "dp_sensitivity")
#: What is climbed where numbers are made coarser, and nothing is proven at any of them.
BITS = "bits"


class FrontierSettings(BaseModel):
    """Everything but data, defenses and levels. The same network is trained and attacked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field("logistic", description="The network that is trained and attacked.")
    victims: Count = Field(VICTIMS_NEEDED, description="Victims per point; fewer cannot show resilience.")
    attacked: Literal["initial", "trained"] = Field(
        "initial", description="Attacked weights: initial (a network per victim), or trained."
    )
    clients: Count = Field(20, description="N.")
    clients_per_round: Count = Field(20, description="K.")
    rounds: Count = Field(20, description="T.")
    local_steps: Count = Field(10, description="L, local steps per round.")
    batch_size: Count = Field(10, description="B, examples per local step of the training.")
    examples: Count | None = Field(None, description="Per client; by default L times B, or as many as there are.")
    split: str = Field("iid", description="See harness train.")
    client_sampling: ClientSampling = Field("all", description="fixed, poisson or all.")
    batch_sampling: BatchSampling = Field("poisson", description="shuffle, partition, poisson or without-replacement.")
    learning_rate: Positive = Field(0.1, description="Of local SGD.")
    delta: Delta = Field(1e-5, description="Of every epsilon.")
    seed: Annotated[int, Field(ge=0)] = Field(0, description="Of training and victims.")


@dataclass(frozen=True)
class Grid:
    """Which datasets, defenses, levels of noise and taps; ``attacks`` are names of attacks and suites."""

    datasets: tuple[str, ...] = ("mnist-sample", "digits", "cancer")
    defenses: Defenses = (("fed_cdp", {}), ("fed_sdp", {"noise_at": "client"}))
    levels: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0)
    taps: tuple[Tap, ...] = (SURFACES[0],)
    attacks: tuple[str, ...] = ("auto",)


_FULL = Grid(
    datasets=("mnist", "fashion-mnist", "digits", "adult", "cancer"),
    defenses=(
        ("fed_cdp", {}), ("fed_acdp", {}), ("dp_local", {}), ("fed_sdp", {"noise_at": "client"}),
        ("quantile", {"unit": "example"}), ("adaclip", {}), ("noise", {"applies_to": "gradient"}),
    ),
    levels=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    taps=(SURFACES[2], SURFACES[0]),
)  # fmt: skip


def usual(full: bool) -> Grid:
    """What is tried where nothing is named; ``full`` takes hours."""
    return _FULL if full else Grid()


def noise_setting(defense: str) -> str:
    """The setting that the level of a defense's noise, or the bits of its numbers, go by.

    Raises:
        UsageError: it has none.
    """
    own = usual_defense(defense)
    found = next((name for name in own if name.rpartition(".")[2] in (*_NOISE, BITS)), None)
    if found is None:
        raise UsageError(
            f"{defense} has no noise to raise; name a defense with {' or '.join(_NOISE)}, as fed_cdp, or quantization"
        )
    return found
