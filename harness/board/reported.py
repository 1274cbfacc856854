"""What papers print of a place, where a figure of theirs is held."""

from functools import lru_cache

from harness.base.building import build
from harness.defenses import DEFENSES
from harness.experiment import CellSettings
from harness.papers.data import SAMPLES
from harness.papers.judged import Published, published
from harness.results.card import Reported

# What these tables attack.
_NETWORK = "lenet"
_PAPER = "Wei et al., Fed-αCDP"


def reported_for(settings: CellSettings) -> Reported | None:
    """The printed verdict on such a defense at such a tap on that dataset, or on the one that a sample is of."""
    full = {sample: data for data, sample in SAMPLES.items()}
    if settings.model != _NETWORK:
        return None
    data, defense = full.get(settings.dataset, settings.dataset), settings.build_defense()
    for one in _published():
        place = (one.data, str(one.tap), one.batch)
        alike = place == (data, str(settings.tap), settings.batch_size) and one.defense == settings.defense
        if alike and one.resists in ("Y", "N") and build(DEFENSES, one.defense, one.arguments) == defense:
            return Reported(source=f"{_PAPER}, {one.source}: {one.method}", data=data, resists=one.resists)
    return None


@lru_cache(maxsize=1)
def _published() -> list[Published]:
    return published(quick=False)
