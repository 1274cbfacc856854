"""Named sets of options for ``harness evaluate --preset``; what is given on the command line wins.

A preset is a grid, every combination of its lists being a cell, or several grids.
"""

from collections.abc import Callable
from typing import Any

from harness.attacks import ATTACKS
from harness.defenses import DEFENSES
from harness.results.record import TIERS

Grid = dict[str, Any]

# Nothing is public, so that an informed attack beside it changes nobody's victims.
_SMALL: Grid = {
    "dataset": ["digits"], "model": ["mlp"], "victims": 32, "attack": ["cpl"], "attack_arg": ["max_iterations=40"],
    "prior": "none",
}  # fmt: skip

# Of texts, on the smaller network: the other one takes minutes.
_TEXTS: Grid = _SMALL | {
    "dataset": ["notes"], "model": ["text_transformer_64"], "attack_arg": [], "surface": ["2"], "victims": 24,
}  # fmt: skip
# Of a transformer that reads images.
_PATCHES: Grid = _SMALL | {"model": ["vit"], "attack_arg": [], "attack": ["patches"], "surface": ["2"], "victims": 24}

# Noise is weak enough that half of it leaks visibly more: only such a cell shows that noise got lost. In the last
# fed_cdp cell the clipping decides, in dssgd the choice and the bound of coordinates.
_GATE: list[Grid] = [
    _SMALL | {"defense": ["none"], "surface": ["2", "1"]},
    _SMALL | {"defense": ["none"], "surface": ["2"], "batch_size": ["2"]},
    _SMALL | {
        "defense": ["none"], "surface": ["2"], "attack": ["inverting_gradients"],
        "attack_arg": ["max_iterations=100", "tv=0"],
    },
    _SMALL | {
        "defense": ["fed_cdp", "fed_acdp", "quantile", "noise"], "surface": ["2"],
        "defense_arg": ["fed_cdp.sigma=0.002", "fed_acdp.sigma=0.002", "quantile.unit=example", "quantile.sigma=0.002",
                        "noise.applies_to=gradient", "noise.amount=0.01"],
    },
    _SMALL | {
        "defense": ["fed_sdp"], "surface": ["1"], "defense_arg": ["noise_at=client", "clip=0.1", "sigma=0.003"],
    },
    _SMALL | {
        "defense": ["fed_sdp"], "tap": ["T0.post"], "defense_arg": ["noise_at=receive", "clip=0.1", "sigma=0.003"],
    },
    _SMALL | {"defense": ["fed_cdp"], "surface": ["2"], "defense_arg": ["clip=0.5", "sigma=0.008"]},
    _SMALL | {"defense": ["dssgd"], "surface": ["1"]},
    _SMALL | {
        "defense": ["noise"], "surface": ["2"], "attack": ["auto"], "prior": "auto", "attack_arg": [],
        "defense_arg": ["applies_to=gradient", "amount=0.01"], "all_members": True,
    },
    _SMALL | {
        "defense": ["dp_local"], "surface": ["2"], "attack": ["levels", "identify"], "prior": "auto", "attack_arg": [],
        "defense_arg": ["clipping=median_per_tensor"],
    },
    # Four rounds of the same examples: to a single one a few of the images come back.
    _SMALL | {"defense": ["fed_cdp"], "surface": ["2"], "defense_arg": ["sigma=0.0025"], "rounds_seen": ["4"]},
    # What is no image, what is no chain of layers, a table in batches, and numbers of few bits.
    _TEXTS | {"defense": ["none"], "attack": ["token_rows", "span"]},
    _TEXTS | {
        "defense": ["fed_cdp"], "defense_arg": ["sigma=0.003"], "attack": ["decode"], "prior": "auto",
    },
    _PATCHES | {"defense": ["none"]},
    _SMALL | {
        "defense": ["none"], "surface": ["2"], "dataset": ["cancer"], "model": ["mlp2"], "batch_size": ["4"],
        "attack": ["rows"], "attack_arg": [], "victims": 24,
    },
    _SMALL | {
        "defense": ["quantization"], "surface": ["1"], "attack": ["intervals"], "attack_arg": [], "prior": "auto",
        "defense_arg": ["bits=4"],
    },
]  # fmt: skip

# 32 victims: the gate's test needs 24. Caps cost hopeless rows their time and hardly an image: of those that came back
# within 60 iterations, over all defenses, 99.8% did within 30 to cpl, 99.6% to dlg and idlg, 97.6% to cpl on colours.
# To gradinversion none does within 300: it is there so that a fault of its own shows.
_CAPS = [
    "dlg.max_iterations=30", "idlg.max_iterations=30", "cpl.max_iterations=30",
    "inverting_gradients.max_iterations=300", "gradinversion.max_iterations=50",
]  # fmt: skip

# Of a closed form only the scale is sought, and rows of a table are found at once: of a night's, all 1,112 images were
# there after one iteration, all 841 rows within five.
_SCALE, _ROWS = ["max_iterations=3"], ["max_iterations=10"]

# Eight for each image, of a batch and of a secure sum of four: a layer of 512 bins takes most of the time of its cell.
_BINS = ["imprint.bins=128", "loki.bins=32"]


# What a night holds once: several rounds, texts, a transformer of images, a table in batches, few bits.
_ONCE: list[Grid] = [
    _SMALL | {
        "defense": ["fed_cdp"], "surface": ["2"], "model": ["logistic"], "defense_arg": ["sigma=1"], "prior": "auto",
        "attack": ["identify", "slope"], "attack_arg": [], "rounds_seen": ["16"],
    },
    _TEXTS | {"defense": ["none", "fed_cdp"], "attack": ["token_rows", "span"], "defense_arg": ["fed_cdp.sigma=0.001"]},
    _TEXTS | {
        "defense": ["fed_cdp"], "defense_arg": ["sigma=0.001"], "attack": ["decode", "identify"], "prior": "auto",
    },
    _PATCHES | {"defense": ["none", "fed_cdp"], "dataset": ["cifar10-sample"]},
    _SMALL | {
        "defense": ["none"], "surface": ["2"], "dataset": ["cancer"], "model": ["mlp2"], "batch_size": ["8"],
        "attack": ["rows"], "attack_arg": [], "victims": 24,
    },
    _SMALL | {
        "defense": ["quantization", "paper:signSGD"], "surface": ["1"], "dataset": ["mnist-sample"], "model": [],
        "attack": ["intervals"], "attack_arg": [], "prior": "auto", "defense_arg": ["quantization.bits=4"],
        "victims": 24,
    },
]  # fmt: skip


def _nightly() -> list[Grid]:
    """Every defense and attack that is registered and needs no settings, so that a new one joins by itself.

    Defenses under the name of another project (``flower:LocalDpMod``) are left out: their operations are those of
    others, and a night has an end.
    """
    ready = {name: DEFENSES[name]() for name in DEFENSES if ":" not in name and _without_settings(DEFENSES[name])}
    secure = [name for name, defense in ready.items() if defense.sums_securely]
    # A baseline follows its victims from night to night: where nothing is public they are drawn as ever.
    every: Grid = {
        "defense": [name for name in ready if name not in secure], "victims": 32, "model": [], "prior": "none",
    }  # fmt: skip
    # Behind a secure sum a victim is a round of clients, all of whose images are attacked: fewer of both.
    sums: Grid = {"defense": secure, "victims": 24, "clients_per_round": 4}
    # Closed forms need a fully connected first layer or learned places, the learned inverse victims who share weights;
    # a blind guess is the control of others; membership is for updates that are no sum of gradients, intervals for
    # rounded numbers.
    elsewhere = ("analytic", "spear", "rows", "patches", "learned", "blind", "membership", "intervals")
    attacks = [
        name for name in ATTACKS
        if name not in elsewhere and ATTACKS[name].reads != "texts" and _without_settings(ATTACKS[name])
    ]  # fmt: skip
    plain, informed, tampering = ([name for name in attacks if ATTACKS[name].tier == tier] for tier in TIERS)
    # Batches, on a network that has the layer some of these need.
    traps: Grid = {"dataset": ["mnist-sample"], "model": ["mlp2"], "batch_size": ["4"]}
    cpl = {"attack": ["cpl"], "attack_arg": ["max_iterations=30"]}
    return [
        grid
        for some in (every, every | sums)
        for grid in (
            some | {"dataset": ["mnist-sample"], "attack": plain, "attack_arg": _CAPS},
            some | {"dataset": ["mnist-sample"], "attack": informed, "prior": "auto"},
            some | traps | {"attack": tampering, "attack_arg": _BINS, "prior": "auto", "victims": 24},
            some | {"dataset": ["mnist-sample"], "attack": ["analytic"], "model": ["mlp2"], "attack_arg": _SCALE},
            some | traps | {"attack": ["spear"]},
            some | {"dataset": ["cifar10-sample"], "victims": 24, **cpl},
            some | {"dataset": ["cancer"], "attack": ["cpl"], "attack_arg": _ROWS},
        )
    ] + _ONCE


def _without_settings(kind: Callable[[], object]) -> bool:
    try:
        kind()
    except Exception:  # a plugin's, which may demand a setting
        return False
    return True


#: What each is for, and its grid or grids, or what makes them of all that is registered.
PRESETS: dict[str, tuple[str, Grid | list[Grid] | Callable[[], list[Grid]]]] = {
    "tour": (
        "the three families of defenses against all of auto at every surface, 64 victims",
        {"defense": ["none", "fed_sdp", "fed_cdp", "fed_acdp"], "attack": ["auto"], "victims": 64},
    ),
    "glance": (
        "a first look in about a minute: 12 victims, too few for a verdict of resilience",
        {"defense": ["none", "fed_acdp"], "attack": ["cpl", "map"], "surface": ["2"], "victims": 12},
    ),
    "attacks": (
        "all attacks against no defense at the local step, 64 victims",
        {
            "defense": ["none"],
            "attack": ["dlg", "idlg", "cpl", "inverting_gradients", "gradinversion"],
            "surface": ["2"],
        },
    ),
    "smoke": (
        "every part once on 8x8 digits, for pull requests: no defense, two defenses and a stack; under two minutes",
        _SMALL | {"defense": ["none", "fed_cdp", "fed_sdp", "pruning+noise"], "surface": ["2", "1"]},
    ),
    "gate": ("33 cells in which any fault of a defense or an attack shows, for harness check; two minutes", _GATE),
    "nightly": (
        "every defense x attack x surface on mnist-sample, cpl on cifar10-sample and cancer; texts, a ViT, few bits",
        _nightly,
    ),
}
