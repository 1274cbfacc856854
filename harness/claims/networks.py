"""Sizes of updates by the name of a network: all numbers of its state, and how many arrays of them are 0-d.

The numbers are those of torchvision 0.26 with 1,000 classes, and of LeNet-5 with 10; a slow test counts again.
"""

import difflib

from harness.base.errors import UsageError

NETWORKS = {
    "lenet": (61_706, 0),
    "alexnet": (61_100_840, 0),
    "vgg11": (132_863_336, 0),
    "vgg16": (138_357_544, 0),
    "vgg16_bn": (138_374_453, 13),
    "resnet18": (11_699_132, 20),
    "resnet34": (21_814_732, 36),
    "resnet50": (25_610_205, 53),
    "resnet101": (44_654_608, 104),
    "densenet121": (8_062_625, 121),
    "mobilenet_v2": (3_539_036, 52),
    "mobilenet_v3_small": (2_555_002, 34),
    "mobilenet_v3_large": (5_507_478, 46),
    "efficientnet_b0": (5_330_613, 49),
    "squeezenet1_1": (1_235_496, 0),
    "shufflenet_v2_x1_0": (2_294_840, 56),
    "googlenet": (13_020_019, 59),
    "inception_v3": (27_197_584, 96),
    "convnext_tiny": (28_589_128, 0),
    "vit_b_16": (86_567_656, 0),
    "swin_t": (28_317_166, 0),
}


def network(name: str) -> tuple[int, int]:
    """Return the numbers of an update and its 0-d arrays.

    Raises:
        UsageError: an unknown name.
    """
    if found := NETWORKS.get(name.lower().replace("-", "_")):
        return found
    near = difflib.get_close_matches(name.lower(), NETWORKS, 1)
    meant = f"; did you mean {near[0]}" if near else ""
    raise UsageError(f"unknown --model {name!r}{meant}; or give --parameters and --scalars")
