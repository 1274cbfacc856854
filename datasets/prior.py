"""A Gaussian over the examples of each class, fitted to public ones, in coordinates in which it is standard normal."""

import hashlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.datasets import Dataset

# Rows that are multiplied together as many are: 2 on Intel's processors, 4 on AMD's, by MKL.
_FEWEST = 4


@dataclass(frozen=True, eq=False)
class Prior:
    """A Gaussian for every class; images are flattened to D numbers.

    Attributes:
        name: of the public data. size: how many examples it was fitted to.
        means: (K, D), of each class.
        groups: (K,) int64, which of the G covariances a class has: one of its own, or that of all classes pooled.
        directions: (G, D, d), orthonormal columns. scales: (G, d), standard deviations along them.
        rest: (G,), the standard deviation along everything else, so that no image has probability 0.
        texts: (N, D), the public examples themselves where they are texts, of which no Gaussian can be drawn; None for
            images. classes: (N,), theirs.
    """

    name: str
    size: int
    means: Tensor
    groups: Tensor
    directions: Tensor
    scales: Tensor
    rest: Tensor
    texts: Tensor | None = None
    classes: Tensor | None = None

    def drawn(self, label: int, count: int, random: torch.Generator) -> Tensor:
        """Examples (count, D) of a class: from the Gaussian, or of texts public ones, of any class if it has none."""
        if self.texts is None or self.classes is None:
            where = torch.randn(1, count, self.means.shape[1], generator=random).to(self.means)
            return self.place(where, torch.full((1, count), label, device=where.device))[0]
        own = (self.classes == label).nonzero()[:, 0]
        own = own if len(own) else torch.arange(len(self.texts), device=own.device)
        chosen = torch.cat([torch.randperm(len(own), generator=random) for _ in range(-(-count // len(own)))])[:count]
        return self.texts[own[chosen.to(own.device)]]

    def place(self, coordinates: Tensor, labels: Tensor) -> Tensor:
        """The images (R, n, D) at whitened coordinates (R, n, D) of classes (R, n).

        Coordinates drawn from a standard normal give images drawn from the prior; zeros give the class means.
        """
        flat, classes = coordinates.flatten(0, 1), labels.flatten()
        spread = torch.zeros_like(flat)
        own = self.groups[classes]
        if flat.is_cuda:  # which rows a group has is known there only, and to ask means to wait
            for group in range(len(self.directions)):
                spread = torch.where((own == group)[:, None], self._stretched(flat, group), spread)
            return (self.means[classes] + spread).view_as(coordinates)
        for group in own.unique().tolist():
            rows = (own == group).nonzero()[:, 0]
            # Few rows take other kernels on the CPU than the same among many.
            some = flat[rows.repeat(-(-_FEWEST // len(rows)))]
            spread = spread.index_copy(0, rows, self._stretched(some, group)[: len(rows)])
        return (self.means[classes] + spread).view_as(coordinates)

    def coordinates(self, images: Tensor, labels: Tensor) -> Tensor:
        """The whitened coordinates (R, n, D) of images (R, n, D) of classes (R, n): what :meth:`place` puts there."""
        flat, classes = images.flatten(0, 1), labels.flatten()
        apart, found = flat - self.means[classes], torch.zeros_like(flat)
        for group in range(len(self.directions)):
            along, rest = self.directions[group], self.rest[group]
            shrunk = apart / rest + ((apart @ along) * (1 / self.scales[group] - 1 / rest)) @ along.T
            found = torch.where((self.groups[classes] == group)[:, None], shrunk, found)
        return found.view_as(images)

    def _stretched(self, some: Tensor, group: int) -> Tensor:
        along = self.directions[group]
        return some * self.rest[group] + ((some @ along) * (self.scales[group] - self.rest[group])) @ along.T

    def spread(self) -> Tensor:
        """(K,), the expected squared distance of an example from the mean of its class."""
        left = self.means.shape[1] - self.scales.shape[1]
        return (self.scales.square().sum(1) + left * self.rest.square())[self.groups]

    def to(self, device: torch.device, dtype: torch.dtype) -> "Prior":
        """A copy on another device and in another floating-point precision."""
        moved = {name: getattr(self, name).to(device, dtype) for name in ("means", "directions", "scales", "rest")}
        texts = {
            "texts": None if self.texts is None else self.texts.to(device, dtype),
            "classes": None if self.classes is None else self.classes.to(device),
        }
        return replace(self, groups=self.groups.to(device), **moved, **texts)

    def fingerprint(self) -> str:
        """A hash of its numbers."""
        digest = hashlib.sha256()
        texts = () if self.texts is None or self.classes is None else (self.texts, self.classes)
        for tensor in (self.means, self.groups, self.directions, self.scales, self.rest, *texts):
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:20]


# Fits the Gaussian prior to public examples: means, principal directions, and the noise that they leave out.
#
# Each covariance is that of probabilistic principal component analysis (Tipping and Bishop, "Probabilistic Principal
# Component Analysis", JRSS B 1999, section 3): the largest directions as they are, the mean variance of the others
# along everything else. From few examples the largest variances come out too large and the others too small, which
# would put new images beyond the reach of the prior; all are drawn to their average as far as sampling errs (Ledoit
# and Wolf, "A Well-Conditioned Estimator for Large-Dimensional Covariance Matrices", JMVA 2004, section 3.3).

OWN_COVARIANCE = 400
"""A class with so many public examples has a mean and a covariance of its own."""
RANK = 256
"""The most directions that a covariance has."""
_FLOOR = 1e-3
"""Least deviation along any direction, as a share of the root mean square deviation of a number."""


def fit_prior(public: Dataset) -> Prior:
    """The Gaussian of every class of public examples; a pure function of them.

    A class with fewer than ``OWN_COVARIANCE`` examples shares the covariance of all deviations from class means, and
    its mean is drawn to that of all classes, to the global mean itself where it has no examples.

    Args:
        public: N >= 2 examples, finite; those of a class are not all alike. Of texts it is :func:`_of_texts`.
    """
    rows, labels = public.images.flatten(1).double(), public.labels
    if public.words is not None:
        return _of_texts(public, rows)
    counts = labels.bincount(minlength=public.num_classes)
    own = counts >= OWN_COVARIANCE
    centres = _class_means(rows, labels, len(counts))
    deviations = rows - centres[labels]
    rank = min(RANK, len(rows) - 1, rows.shape[1])
    parts = [deviations[labels == label] for label in own.nonzero()[:, 0].tolist()]
    freedoms = [len(part) - 1 for part in parts]
    if not own.all():
        parts.append(deviations)
        freedoms.append(max(len(rows) - int((counts > 0).sum()), 1))
    fitted = _spread if public.columns is None else _column_spread
    spreads = [fitted(part, freedom, rank) for part, freedom in zip(parts, freedoms, strict=True)]
    directions, scales, rest = (torch.stack(values).float() for values in zip(*spreads, strict=True))
    # Classes with a covariance of their own come first, the pooled one last.
    groups = torch.where(own, own.cumsum(0) - 1, len(parts) - 1)
    means = torch.where(own[:, None], centres, _drawn_together(centres, counts, deviations))
    return Prior(public.name, len(rows), means.float(), groups, directions, scales, rest)


def _of_texts(public: Dataset, rows: Tensor) -> Prior:
    """A mean of texts is none: in its place, of each class the text that differs in the fewest bits from all of it.

    A class without examples has that of all classes.
    """
    middle = torch.stack([_most_central(rows[own] if own.any() else rows) for own in _of_classes(public)])
    classes, width = middle.shape
    none = torch.zeros(1, width, 1)
    return Prior(
        public.name, len(rows), middle.float(), torch.zeros(classes, dtype=torch.long), none, torch.zeros(1, 1),
        torch.zeros(1), rows.float(), public.labels,
    )  # fmt: skip


def _of_classes(public: Dataset) -> list[Tensor]:
    return [public.labels == label for label in range(public.num_classes)]


def _most_central(rows: Tensor) -> Tensor:
    return rows[(rows - rows.mean(0)).square().sum(1).argmin()]


def _class_means(rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    """(K, D) in double precision; zeros for a class without examples."""
    means = torch.zeros(classes, rows.shape[1], dtype=torch.float64)
    for label in labels.unique().tolist():
        means[label] = rows[labels == label].mean(0)
    return means


def _drawn_together(centres: Tensor, counts: Tensor, deviations: Tensor) -> Tensor:
    """Class means (K, D), each drawn to the global mean as far as its own is uncertain.

    Empirical Bayes (Efron and Morris, "Stein's Estimation Rule and Its Competitors", JASA 1973): a mean of n examples
    errs by W / n, where the variance within classes is W, and class means differ by B; the weight of a class's own mean
    is B / (B + W / n).
    """
    there = counts > 0
    sizes = counts[there].double()
    middle = (centres * counts[:, None]).sum(0) / counts.sum()
    within = float(deviations.square().sum()) / max(int(counts.sum()) - len(sizes), 1)
    apart = (centres[there] - middle).square().sum(1).mean() - within * (1 / sizes).mean()
    between = max(float(apart), 0.0)
    weight = between * counts / (between * counts + within)
    return middle + weight[:, None] * (centres - middle)


Spread = tuple[Tensor, Tensor, Tensor]


def _spread(deviations: Tensor, freedom: int, rank: int) -> Spread:
    """Directions (D, d), deviations along them (d,) and along everything else () of rows (n, D) around 0."""
    count, width = deviations.shape
    # The smaller of the two matrices that have the variances as eigenvalues.
    small = count < width
    values, vectors = torch.linalg.eigh((deviations @ deviations.T if small else deviations.T @ deviations) / freedom)
    values, vectors = values.flip(0).clamp_min(0.0), vectors.flip(1)[:, :rank]
    # Where there is no variance, the Gram matrix gives no direction; QR fills in what is orthogonal to the others.
    directions = torch.linalg.qr(deviations.T @ vectors)[0] if small else vectors
    total = values.sum()
    left = (total - values[:rank].sum()).clamp_min(0.0) / max(width - rank, 1)
    average, share = total / width, _shrinkage(deviations, values, freedom)
    variances, left = (kept + share * (average - kept) for kept in (values[:rank], left))
    floor = _FLOOR * average.sqrt()
    return directions, variances.sqrt().clamp_min(floor), left.sqrt().clamp_min(floor)


def _shrinkage(deviations: Tensor, values: Tensor, freedom: int) -> Tensor:
    """Return how far to draw the variances (of all directions that have any) to their average, in [0, 1]."""
    width, squares = deviations.shape[1], values.square().sum()
    apart = squares - values.sum().square() / width
    error = deviations.square().sum(1).square().sum() / freedom**2 - squares / freedom
    return (error / apart.clamp_min(torch.finfo(apart.dtype).tiny)).clamp(0.0, 1.0)


def _column_spread(deviations: Tensor, freedom: int, rank: int) -> Spread:
    """Return the spread of :func:`_spread` for rows of a table, fitted to columns that are scaled to deviation 1."""
    units = deviations.square().mean(0).sqrt()
    units = units.where(units > 0, 1.0)
    directions, scales, rest = _spread(deviations / units, freedom, rank)
    root = directions * (scales.square() - rest.square()) @ directions.T + rest.square() * torch.eye(len(units))
    values, vectors = torch.linalg.eigh(units[:, None] * root * units)
    variances, left = values.flip(0)[:rank].clamp_min(0.0), values.flip(0)[rank:].clamp_min(0.0)
    floor = _FLOOR * values.mean().sqrt()
    rest = (left.mean() if len(left) else floor.square()).sqrt().clamp_min(floor)
    return vectors.flip(1)[:, :rank], variances.sqrt().clamp_min(floor), rest
