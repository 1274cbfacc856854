"""The search for a policy of ``paper:ATS``, on public examples alone; it prints the policy that the defense is given.

    python -m harness.defenses.ats_search --dataset digits --model lenet

Source: Gao et al. 2021, as in ATSPrivacy 2496fc95, ``benchmark/search_transform_attack.py`` and ``searchalg/``. Lists
of three transforms are drawn by chance. A list is private where gradients say little of the way to a transformed image:
the integral of the cosine between its gradient and that of an image on the line from noise to it, on a network that
was trained a little. A list harms accuracy where inputs look alike to a fresh network: by the eigenvalues of the
correlations of its derivatives. Of the better half in accuracy the most private lists are taken. The source has a fixed
threshold there, which depends on how many images were looked at.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from harness.base.errors import UsageError
from harness.base.randomness import generator
from harness.datasets import Dataset, data_root
from harness.datasets.load import load_dataset
from harness.datasets.public import AUTO, divide
from harness.defenses.ats import NUMBERS, TransformInputs
from harness.models import RowModel

_BINS, _LENGTH, _EACH, _BATCH, _RATE = 20, 3, 5, 32, 0.1
_TINY = 1e-5


@dataclass(frozen=True)
class Scored:
    """A list of transforms: the cosine on the way to its images, by class (K,), and what it leaves of accuracy."""

    policy: str
    cosines: Tensor
    accuracy: float


def cosines_on_the_way(model: RowModel, weights: Tensor, images: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
    """The mean cosine (N,), over tensors and the line from noise to images (N, C, H, W), of theirs and its gradients.

    Args:
        weights: (1, P).
    """

    def gradients(seen: Tensor) -> list[Tensor]:
        made = model.per_example_gradients(weights, seen[None], labels[None]).detach()
        return [part[0].flatten(1) for part in model.layout.split(made).values()]

    own, total = gradients(images), torch.zeros(len(images))
    for step in range(_BINS + 1):
        here = gradients(noise + step / _BINS * (images - noise))
        cosines = torch.stack([cosine_similarity(*pair) for pair in zip(own, here, strict=True)]).mean(0)
        total = total + cosines * (0.5 if step in (0, _BINS) else 1.0)
    return total / _BINS


def accuracy_left(model: RowModel, weights: Tensor, images: Tensor) -> float:
    """-mean(log v + 1/v) of the eigenvalues v of the correlations between derivatives by images (N, C, H, W).

    It is -1 where all are independent, and less where they are alike.
    """
    seen = images[None].clone().requires_grad_()
    (derivatives,) = torch.autograd.grad(model.logits(weights, seen).sum(), seen)
    correlations = torch.corrcoef(derivatives[0].flatten(1).double()).nan_to_num(0.0)
    values = torch.linalg.eigvalsh(correlations).clamp_min(0.0) + _TINY
    return float(-(values.log() + 1 / values).mean())


def trained_a_little(model: RowModel, public: Dataset, epochs: int, seed: int) -> Tensor:
    """Weights (1, P) after some epochs of plain SGD on public examples."""
    weights, random = model.initial_weights([("ats", seed)]), generator("ats training", seed)
    for _ in range(epochs):
        for rows in torch.randperm(len(public.labels), generator=random).split(_BATCH):
            step = model.gradient(weights, public.images[rows][None], public.labels[rows][None])
            weights = weights - _RATE * step.detach()
    return weights


def scored(model: RowModel, public: Dataset, candidates: int, epochs: int, seed: int) -> list[Scored]:
    """Lists of transforms that are drawn by chance, each once, with their scores."""
    random, total = generator("ats search", seed), len(NUMBERS) ** _LENGTH
    if not 0 < candidates <= total:
        raise UsageError(f"--candidates must be 1 to {total}, the lists that there are, got {candidates}")
    rows = torch.cat([(public.labels == one).nonzero()[:_EACH, 0] for one in range(public.num_classes)])
    images, labels = public.images[rows], public.labels[rows]
    noise = torch.rand(images.shape, generator=random)
    fresh, trained = model.initial_weights([("ats", seed)]), trained_a_little(model, public, epochs, seed)
    found = []
    for place in torch.randperm(total, generator=random)[:candidates].tolist():
        digits = [place // len(NUMBERS) ** one % len(NUMBERS) for one in range(_LENGTH)]
        policy = "-".join(str(NUMBERS[digit]) for digit in digits)
        ways = list(TransformInputs(policy).disguises())
        made = torch.stack([ways[number % len(ways)](image) for number, image in enumerate(images)])
        own = [labels == one for one in labels.unique()]
        each = [cosines_on_the_way(model, trained, made[one], labels[one], noise[one]).mean() for one in own]
        found.append(Scored(policy, torch.stack(each), accuracy_left(model, fresh, made)))
    return found


def chosen(found: Sequence[Scored], lists: int, alpha: float) -> list[Scored]:
    """Return those of the better half in accuracy that have the least cosine; alpha weighs its mean, the rest its
    variance by class.

    Both count from 0 for the least to 1 for the largest of all lists.
    """
    if not 0 < lists <= (len(found) + 1) // 2:
        raise UsageError(f"--lists must be 1 to {(len(found) + 1) // 2}, half of the candidates, got {lists}")
    if not 0 <= alpha <= 1:
        raise UsageError(f"--alpha must be 0 to 1, got {alpha:g}")
    cosines = torch.stack([one.cosines for one in found])
    scores = alpha * _scaled(cosines.mean(1)) + (1 - alpha) * _scaled(cosines.var(1, correction=0))
    by_accuracy = sorted(range(len(found)), key=lambda place: -found[place].accuracy)
    kept = by_accuracy[: (len(found) + 1) // 2]
    return [found[place] for place in sorted(kept, key=lambda place: float(scores[place]))[:lists]]


def _scaled(values: Tensor) -> Tensor:
    return (values - values.min()) / (values.max() - values.min()).clamp_min(1e-12)


def search(arguments: argparse.Namespace) -> list[Scored]:
    """Return what is found on the public side of a dataset.

    Raises:
        UsageError: there are no images, or too few lists.
    """
    root = data_root(arguments.data_root)
    public = divide(load_dataset(arguments.dataset, root), arguments.dataset, AUTO, root).public
    if public.columns is not None or public.words is not None:
        raise UsageError(f"dataset {arguments.dataset!r} has no images to transform; use --dataset digits")
    model = RowModel(arguments.model, public.image_shape, public.num_classes)
    found = scored(model, public, arguments.candidates, arguments.epochs, arguments.seed)
    return chosen(found, arguments.lists, arguments.alpha)


def main(given: Sequence[str] | None = None) -> int:
    """Print the lists that were chosen, and the policy; 2 where that is impossible."""
    parser = argparse.ArgumentParser(prog="python -m harness.defenses.ats_search", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--candidates", type=int, default=100, help="how many lists are drawn")
    parser.add_argument("--lists", type=int, default=2, help="how many of them make the policy")
    parser.add_argument("--epochs", type=int, default=5, help="of training on public examples")
    parser.add_argument("--alpha", type=float, default=0.7, help="weight of the mean cosine against its variance")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-root", help="folder of datasets; else $HARNESS_DATA, else ~/.cache/harness")
    try:
        found = search(parser.parse_args(given))
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    for one in found:
        print(f"{one.policy}: cosine {float(one.cosines.mean()):.3f}, accuracy score {one.accuracy:.3f}")
    print(f"--defense paper:ATS --defense-arg policy={'+'.join(one.policy for one in found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
