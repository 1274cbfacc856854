"""Compression of updates, sometimes used as a defense: fewer bits, signs, or only the largest values.

Sources: NVFlare's ``ModelQuantizer`` (nvflare 2.9.0, ``app_opt/pt/quantization/``); Alistarh et al. 2017 (QSGD) and
Bernstein et al. 2018 (signSGD) as in rog e6efc048, ``src/compress/compressor.py``; Karimireddy et al. 2019 (error
feedback).
"""

from typing import Annotated, Literal

from pydantic import Field

from harness.defenses.claimed import of_filter
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.clip_and_noise import KeepLargest
from harness.federation.coding import ErrorFeedback, Quantise, RoundByChance, Sign
from harness.federation.context import Cohort
from harness.federation.defense import Defense
from harness.federation.operations import Operation


@DEFENSES.register("quantization")
@validated_defense
class Quantization(Defense):
    """Rounds updates to ``float16``, ``bfloat16``, ``int8`` (by the largest of a tensor) or ``normfloat4``.

    ``bits``: to integers of so many bits, whatever ``kind`` says.
    """

    kind: Literal["float16", "bfloat16", "int8", "normfloat4"] = "int8"
    bits: Annotated[int, Field(ge=2, le=16)] | None = None

    def operations(self, cohort: Cohort) -> list[Operation]:
        return [Quantise(self.kind) if self.bits is None else Quantise("int8", self.bits)]


@DEFENSES.register("nvflare:ModelQuantizer")
@validated_defense
class ModelQuantizer(Defense):
    """Rounds what a client sends to ``float16``, to levels for blocks of numbers, or to steps of each tensor."""

    quantization_type: Literal["float16", "blockwise8", "float4", "normfloat4", "adaquant"] = "float16"

    def operations(self, cohort: Cohort) -> list[Operation]:
        rounded = Quantise(self.quantization_type)
        return [rounded, of_filter("nvflare:ModelQuantizer", self, (), rounded)]


@DEFENSES.register("paper:QSGD")
@validated_defense
class QSGD(Defense):
    """Rounds by chance, without bias, to ``levels`` - 1 steps of the largest magnitude of each tensor."""

    levels: Annotated[int, Field(ge=2, le=65536)] = 16

    def operations(self, cohort: Cohort) -> list[Operation]:
        rounded = RoundByChance(self.levels - 1)
        return [rounded, of_filter("paper:QSGD", self, (), rounded)]


@DEFENSES.register("paper:signSGD")
@validated_defense
class SignSGD(Defense):
    """Sends signs; ``scaled`` by the mean magnitude of each tensor. ``error_feedback`` keeps what is lost."""

    scaled: bool = False
    error_feedback: bool = False

    def operations(self, cohort: Cohort) -> list[Operation]:
        sign: Operation = Sign("mean_sign" if self.scaled else "sign")
        sign = ErrorFeedback(sign) if self.error_feedback else sign
        return [sign, of_filter("paper:signSGD", self, (), sign)]


@DEFENSES.register("paper:top-k")
@validated_defense
class TopK(Defense):
    """Sends the ``share`` of largest magnitude, and with ``error_feedback`` what was left out in later rounds."""

    share: Annotated[float, Field(gt=0, le=1)] = 0.1
    error_feedback: bool = True

    def operations(self, cohort: Cohort) -> list[Operation]:
        kept: Operation = KeepLargest(1 - self.share)
        kept = ErrorFeedback(kept) if self.error_feedback else kept
        return [kept, of_filter("paper:top-k", self, (), kept)]
