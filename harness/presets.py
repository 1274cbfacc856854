"""Named sets of options for ``harness evaluate --preset``; what is given on the command line wins."""

from typing import Any

PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "tour": (
        "the three families of defenses against cpl at every surface, 64 victims",
        {"defense": ["none", "fed_sdp", "fed_cdp", "fed_acdp"], "attack": ["cpl"], "victims": 64},
    ),
    "glance": (
        "a first look in well under a minute: 12 victims, too few for a verdict of resilience",
        {"defense": ["none", "fed_acdp"], "attack": ["cpl"], "surface": ["2"], "victims": 12},
    ),
    "attacks": (
        "all attacks against no defense at the local step, 64 victims",
        {
            "defense": ["none"],
            "attack": ["dlg", "idlg", "cpl", "inverting_gradients", "gradinversion"],
            "surface": ["2"],
        },
    ),
}
