"""Metrics of images (docs/verdicts.md): all but ``rmse_raw`` are taken after clamping to [0, 1].

LPIPS (Zhang et al. 2018) is the perceptual distance on AlexNet features, from weights already on this machine.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from skimage.metrics import structural_similarity
from torch import Tensor
from torch.nn import functional

from harness.base.columns import Columns
from harness.base.words import PAD, tokens_of
from harness.results.files import Damaged, PlainTensor, Unreadable, checked, parse_tensors, read_bytes
from harness.scoring.images import clamped_pixels, exact_pixels
from harness.scoring.success import STRICT_RMSE

if TYPE_CHECKING:
    import lpips

Values = NDArray[np.float64]

SMALLEST_SIDE = 64
TORCHVISION_FILE = "alexnet-owt-7be5be79.pth"
_CHUNK = 64


class LpipsScorer:
    """LPIPS version 0.1 with AlexNet; make one with ``LpipsScorer.load``."""

    def __init__(self, network: "lpips.LPIPS") -> None:
        self._network = network

    @classmethod
    def load(cls, data_root: Path) -> "LpipsScorer | str":
        """The scorer, or one sentence that says why LPIPS cannot be had. Nothing is ever downloaded.

        The features are taken from torchvision's cache (``TORCHVISION_FILE``), else from
        ``data_root/lpips_alexnet/*.pth``, a state dict with keys ``features.{0,3,6,8,10}.{weight,bias}``.
        """
        places = [Path(torch.hub.get_dir()) / "checkpoints" / TORCHVISION_FILE]
        places += sorted((data_root / "lpips_alexnet").glob("*.pth"))
        weights_file = next((place for place in places if place.is_file()), None)
        if weights_file is None:
            return "no AlexNet weights in torchvision's cache nor in the data root's folder lpips_alexnet"
        stat = weights_file.stat()
        return _scorer(weights_file, stat.st_mtime_ns, stat.st_size)

    @torch.no_grad()
    def score(self, truth: Tensor, reconstruction: Tensor) -> NDArray[np.float64]:
        """Distances (I,), 0 for equal images, of I pairs (I, C, H, W) with C of 1 or 3, clamped to [0, 1]."""
        if truth.shape != reconstruction.shape:
            raise ValueError(f"shapes differ: truth {tuple(truth.shape)}, reconstruction {tuple(reconstruction.shape)}")
        pairs = zip(truth.split(_CHUNK), reconstruction.split(_CHUNK), strict=True)
        distances = [self._network(_prepare(true), _prepare(guess)).flatten() for true, guess in pairs]
        return torch.cat([torch.empty(0), *distances]).double().numpy()


@lru_cache(1)
def _scorer(weights_file: Path, changed: int, size: int) -> LpipsScorer | str:
    """Made once of a file that stays as it is: building the network takes longer than a small attack."""
    try:
        weights = checked(dict[str, PlainTensor], parse_tensors(read_bytes(weights_file)))
    except (Unreadable, Damaged):
        return f"{weights_file.name} cannot be read as a file of weights"
    network = _untrained_network()
    # lpips names its layers slice1.0, slice2.3, ...: the last part is torchvision's layer number.
    sources = {name: "features." + name.partition(".")[2] for name in network.net.state_dict()}
    missing = sorted(source for source in sources.values() if source not in weights)
    if missing:
        return f"{weights_file.name} lacks {missing[0]}: it does not hold AlexNet's features"
    try:
        network.net.load_state_dict({name: weights[source] for name, source in sources.items()})
    except RuntimeError:
        return f"{weights_file.name} does not hold AlexNet's features: their shapes differ"
    return LpipsScorer(network)


def _untrained_network() -> "lpips.LPIPS":
    # Imported here because it brings torchvision, which takes longer to import than most commands to run.
    import lpips

    # Building it draws random weights, which must not move the caller's random numbers.
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # lpips 0.1.4 still passes torchvision's old ``pretrained`` argument.
        warnings.filterwarnings("ignore", category=UserWarning, module="torchvision.models._utils")
        return lpips.LPIPS(net="alex", pnet_rand=True, verbose=False)


def _prepare(images: Tensor) -> Tensor:
    """(I, 3, >=64, >=64) in [-1, 1]: AlexNet's strides leave nothing of smaller or grey images."""
    pixels = clamped_pixels(images).float()
    if pixels.shape[1] == 1:
        pixels = pixels.expand(-1, 3, -1, -1)
    height, width = pixels.shape[-2:]
    if min(height, width) < SMALLEST_SIDE:
        size = (max(height, SMALLEST_SIDE), max(width, SMALLEST_SIDE))
        pixels = functional.interpolate(pixels, size=size, mode="bilinear", align_corners=False)
    return pixels * 2.0 - 1.0


# What errors on rows of a table are measured by, and when a row counts as reconstructed.


@dataclass(frozen=True)
class TableScale:
    """The scale of errors on a table.

    A tenth of a column's range is a close guess for a column that uses its range and a poor one for a column that
    does not (a class mean is within a tenth of the range of most of ``cancer``), so continuous errors count in
    standard deviations of their column.

    ``columns``: the schema; ``deviations``: (C,) float64, standard deviation of each continuous column over the table,
    1 where a column is constant.
    """

    columns: Columns
    deviations: Tensor

    @classmethod
    def of(cls, columns: Columns, features: Tensor, deviations: Tensor | None = None) -> "TableScale":
        """Return the scale from all rows (N, 1, 1, F) of the table, or from its deviations (C,)."""
        if deviations is None:
            values = exact_pixels(features).flatten(1)[:, : len(columns.continuous)]
            deviations = (values - values.mean(0)).square().mean(0).sqrt()
        return cls(columns, torch.where(deviations > 0, deviations, 1.0))

    def errors(self, truth: Tensor, reconstruction: Tensor) -> Tensor:
        """Absolute errors (..., C) of the continuous columns in standard deviations, after clamping to [0, 1].

        Rows are (..., 1, 1, F); the reconstruction is finite.
        """
        difference = clamped_pixels(truth) - clamped_pixels(reconstruction)
        return difference.flatten(-3)[..., : len(self.columns.continuous)].abs() / self.deviations

    def categories_right(self, truth: Tensor, reconstruction: Tensor) -> Tensor:
        """Return whether the nearest category of each categorical column (..., G) is true; rows are (..., 1, 1, F)."""
        true_category = self.columns.categories(exact_pixels(truth).flatten(-3))
        return self.columns.categories(exact_pixels(reconstruction).flatten(-3)) == true_category

    def strict(self, truth: Tensor, reconstruction: Tensor) -> Tensor:
        """Return whether rows (..., 1, 1, F) are reconstructed (...): every category right, and continuous columns
        within a root mean square of 0.1 standard deviations."""
        categories = self.categories_right(truth, reconstruction).all(-1)
        if not self.columns.continuous:
            return categories
        return categories & (root_mean_square(self.errors(truth, reconstruction)) <= STRICT_RMSE)


def root_mean_square(errors: Tensor) -> Tensor:
    """Return the root mean squares (...) of errors (..., C)."""
    return errors.square().mean(-1).sqrt()


@dataclass(frozen=True)
class TextScale:
    """Texts are compared token by token."""

    def wrong(self, truth: Tensor, made: Tensor) -> Tensor:
        """Return whether each place (..., T) of texts (..., 1, BITS, T) holds another token."""
        return tokens_of(exact_pixels(truth)) != tokens_of(exact_pixels(made))

    def strict(self, truth: Tensor, reconstruction: Tensor) -> Tensor:
        """Return whether texts are reconstructed (...): every token right, in order, and no more of them."""
        return ~self.wrong(truth, reconstruction).any(-1)

    def told(self, truth: Tensor, made: Tensor) -> Values:
        """Return which share (I,) of a text's tokens stands at its place."""
        there = tokens_of(exact_pixels(truth)) != PAD
        right = (there & ~self.wrong(truth, made)).sum(-1) / there.sum(-1).clamp_min(1)
        return right.double().numpy()


Scale = TableScale | TextScale

# What a metric is: one record says all that documents, tables and figures need of it, and how it is computed.

_NO_IMAGE = "it compares images, and {} is none"


@dataclass(frozen=True)
class Pairs:
    """I matched pairs (I, C, H, W): truths in [0, 1] and finite reconstructions in any range.

    ``scale`` measures rows of a table and texts, None for images; ``lpips`` is the network, or the reason why there is
    none.

    Raises:
        ValueError: the shapes differ or a value is not finite.
    """

    truth: Tensor
    made: Tensor
    scale: Scale | None = None
    lpips: LpipsScorer | str = "not asked for"

    def __post_init__(self) -> None:
        if self.truth.shape != self.made.shape:
            raise ValueError(f"shapes differ: truth {tuple(self.truth.shape)}, made {tuple(self.made.shape)}")
        exact_pixels(self.made)

    @property
    def table(self) -> TableScale:
        """Return the scale that rows are measured by. Raises ValueError for images."""
        if not isinstance(self.scale, TableScale):
            raise ValueError("a metric of tables was asked of others")
        return self.scale

    @property
    def kind(self) -> Literal["images", "tables", "texts"]:
        """Return what they are."""
        if self.scale is None:
            return "images"
        return "texts" if isinstance(self.scale, TextScale) else "tables"

    @cached_property
    def squared(self) -> Tensor:
        """(I, U) squared errors after clamping to [0, 1], float64 on the CPU; of texts 1 for each wrong token."""
        if isinstance(self.scale, TextScale):
            return self.scale.wrong(self.truth, self.made).double()
        return (clamped_pixels(self.truth) - clamped_pixels(self.made)).flatten(1).square()

    @cached_property
    def mse(self) -> Values:
        """(I,) mean squared errors after clamping."""
        return self.squared.mean(1).numpy()


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number per matched pair.

    Attributes:
        name: in documents.
        measure: from pairs to values (I,).
        of: what it applies to; documents do not name what is of tables, or texts, alone where there are others.
        missing: why it cannot be had for pairs that it applies to, None where it can.
        title: in tables and figures; empty where only documents have it.
        digits: decimals that are shown; None for a share, shown in percent.
        shown: which of the two stands in tables.
        low_leaks: whether a small value means that the truth came back.
        limits: what figures show.
        in_victims: whether the record of each victim has it.
    """

    name: str
    measure: Callable[[Pairs], Values]
    of: Literal["anything", "images", "tables", "texts"] = "anything"
    missing: Callable[[Pairs], str | None] = lambda pairs: None
    title: str = ""
    digits: int | None = 3
    shown: Literal["mean", "median"] = "mean"
    low_leaks: bool = True
    limits: tuple[float, float] = (0.0, 1.0)
    in_victims: bool = False

    def obstacle(self, pairs: Pairs) -> str | None:
        """Return the reason why these pairs do not have it, None where they do."""
        if self.of == "images" and pairs.kind != "images":
            return _NO_IMAGE.format("a table row" if pairs.kind == "tables" else "a text")
        return self.missing(pairs)


#: Every metric by name, in the order of documents.
METRICS: dict[str, Metric] = {}


def register(*metrics: Metric) -> None:
    """Makes metrics known, in this order. Raises ValueError for a name that is known already."""
    for metric in metrics:
        if metric.name in METRICS:
            raise ValueError(f"metric {metric.name!r} is registered twice")
        METRICS[metric.name] = metric


def measured(pairs: Pairs) -> tuple[dict[str, Values], dict[str, str]]:
    """Every metric of these pairs by name, and those that cannot be had with the reason."""
    asked = [metric for metric in METRICS.values() if metric.of in ("anything", "images", pairs.kind)]
    missing = {metric.name: reason for metric in asked if (reason := metric.obstacle(pairs)) is not None}
    return {metric.name: metric.measure(pairs) for metric in asked if metric.name not in missing}, missing


PSNR_CAP = 100.0
SSIM_WINDOW = 11


def _rmse_raw(pairs: Pairs) -> Values:
    if pairs.kind == "texts":
        return np.sqrt(pairs.mse)
    squared = (clamped_pixels(pairs.truth) - exact_pixels(pairs.made)).flatten(1).square()
    return squared.mean(1).sqrt().numpy()


def _psnr(pairs: Pairs) -> Values:
    return -10.0 * np.log10(np.maximum(pairs.mse, 10.0 ** (-PSNR_CAP / 10.0)))


def _ssim_missing(pairs: Pairs) -> str | None:
    height, width = pairs.truth.shape[-2:]
    if min(height, width) >= SSIM_WINDOW:
        return None
    return f"images of {height}x{width} pixels are smaller than the {SSIM_WINDOW}-pixel window of SSIM"


def _ssim(pairs: Pairs) -> Values:
    truth, made = clamped_pixels(pairs.truth).numpy(), clamped_pixels(pairs.made).numpy()
    # sigma 1.5 gives scikit-image an 11x11 window; its defaults K1 = 0.01 and K2 = 0.03 are those of the paper.
    options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "data_range": 1.0}
    similarities = [
        structural_similarity(image, guess, channel_axis=0, **options) for image, guess in zip(truth, made, strict=True)
    ]
    return np.array(similarities, dtype=np.float64)


def _lpips_missing(pairs: Pairs) -> str | None:
    return pairs.lpips if isinstance(pairs.lpips, str) else None


register(
    # Root mean squared error, in [0, 1].
    Metric(name="rmse", measure=lambda pairs: np.sqrt(pairs.mse), title="RMSE", shown="median", in_victims=True),
    # The same without clamping, the "distance" of the paper's Table III.
    Metric(name="rmse_raw", measure=_rmse_raw, in_victims=True),
    # The formula the paper prints as RMSE, which is a mean squared error.
    Metric(name="rmse_seed", measure=lambda pairs: pairs.mse.copy()),
    # rmse * sqrt(U) for U = C*H*W features, what the papers' notebooks log.
    Metric(name="l2dist", measure=lambda pairs: pairs.squared.sum(1).sqrt().numpy()),
    Metric(name="mse", measure=lambda pairs: pairs.mse),
    # In dB, capped at 100.
    Metric(
        name="psnr", measure=_psnr, of="images", title="PSNR", digits=1, low_leaks=False, limits=(0.0, 60.0),
        in_victims=True,
    ),
    # Structural similarity (Wang et al. 2004).
    Metric(
        name="ssim", measure=_ssim, of="images", missing=_ssim_missing, title="SSIM", low_leaks=False,
        limits=(-0.25, 1.0), in_victims=True,
    ),
    # Perceptual distance (Zhang et al. 2018).
    Metric(
        name="lpips", measure=lambda pairs: pairs.lpips.score(pairs.truth, pairs.made), of="images",  # type: ignore[union-attr]
        missing=_lpips_missing, title="LPIPS", limits=(0.0, 1.2), in_victims=True,
    ),
)  # fmt: skip


# Metrics for rows of a table.


def _errors(pairs: Pairs) -> Tensor:
    return pairs.table.errors(pairs.truth, pairs.made)


def _right(pairs: Pairs) -> Tensor:
    return pairs.table.categories_right(pairs.truth, pairs.made).double()


def _no_continuous(pairs: Pairs) -> str | None:
    return None if pairs.table.columns.continuous else "the table has no continuous columns"


def _no_categorical(pairs: Pairs) -> str | None:
    return None if pairs.table.columns.groups else "the table has no categorical columns"


register(
    # Root mean squared error of the continuous columns in standard deviations.
    Metric(
        name="continuous_rmse", measure=lambda pairs: root_mean_square(_errors(pairs)).numpy(), of="tables",
        missing=_no_continuous, title="RMSE/std", shown="median", limits=(0.0, 5.0), in_victims=True,
    ),
    # Share of them within a tenth of a standard deviation.
    Metric(
        name="continuous_within", measure=lambda pairs: (_errors(pairs) <= STRICT_RMSE).double().mean(-1).numpy(),
        of="tables", missing=_no_continuous, low_leaks=False,
    ),
    # Share of categorical columns whose nearest category is right.
    Metric(
        name="categorical_accuracy", measure=lambda pairs: _right(pairs).mean(-1).numpy(), of="tables",
        missing=_no_categorical, title="categories", digits=None, low_leaks=False, in_victims=True,
    ),
    # 1 where all are.
    Metric(
        name="categories_all_right", measure=lambda pairs: _right(pairs).amin(-1).numpy(), of="tables",
        missing=_no_categorical, low_leaks=False,
    ),
)  # fmt: skip
