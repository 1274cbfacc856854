"""A new defense, from an empty file to its verdict: every coordinate of an update is rounded at random to a grid.

Quantisation is often said to hide data as it saves bandwidth. Does it? Run it (a minute or two on two cores):

    python examples/new_defense.py
"""

from typing import Annotated

import harness  # first: it says how many threads the libraries underneath torch may take

# isort: split
import torch
from pydantic import Field
from torch import Tensor

from harness.defenses import DEFENSES, Cohort, Custom, Defense, Operation, RoundContext, validated_defense


@DEFENSES.register("coarse")
@validated_defense
class Coarse(Defense):
    """Rounds each coordinate of an update up or down to a multiple of ``step``, at random so that the mean is right."""

    step: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01

    def operations(self, cohort: Cohort) -> list[Operation]:
        return [Custom(self.rounded, said=f"rounded to multiples of {self.step:g}")]

    def rounded(self, update: Tensor, context: RoundContext) -> Tensor:
        """Updates (N, P) of N clients on the grid."""
        # A Gaussian's distribution function of its own draws is uniform: the only randomness is the round's key.
        toss = torch.special.ndtr(context.gaussian("client_message", update))
        # Controls ask for none of the noise, or for a hundred times as much.
        step = self.step * context.noise_scale
        return (update / step + toss).floor() * step if step else update


if __name__ == "__main__":
    for step in (0.0001, 0.01):
        document = harness.evaluate(
            defense="coarse", defense_args={"step": step}, attack=["cpl", "map"], tap="T1.out", dataset="digits",
            model="mlp", victims=64, out=f"runs/coarse-{step}",
        )  # fmt: skip
        for cell in document.cells:
            if cell.role == "cell":
                came = cell.asr["strict"]
                print(f"step {step}: {cell.attack:4} {cell.verdict}: {came.successes} of {came.n} images come back")
