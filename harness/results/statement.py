"""What privacy is promised against one view: a row of the result document, made by the accountants."""

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from harness.results.record import Number


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Statement:
    """A privacy statement for one view (third party, server, client).

    Attributes:
        claimed_epsilon: by the paper's convention (moments accountant, Mironov conversion, the paper's orders, sigma
            as printed), whether or not it holds; None where no paper claims one.
        epsilon: what holds for what ran; None where nothing does.
        unit: ``client`` or ``example``.
        conversion: the convention behind ``epsilon``.
        schedule: the noise schedule in words.
        guarantee: the tag a theorem covers for what ran; ``none`` where none does.
        notes: one plain sentence why.
        covers: whether the guarantee is about what was read at the row's tap; None without a guarantee, or a tap.
    """

    view: str
    claimed_epsilon: Number = None
    epsilon: Number = None
    delta: Number = None
    unit: str | None = None
    adjacency: str | None = None
    sampler: str | None = None
    conversion: str | None = None
    schedule: str | None = None
    guarantee: str
    notes: str
    covers: bool | None = None
