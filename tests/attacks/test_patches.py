"""Patches of a vision transformer in closed form: exact where places are learned, refused in words elsewhere."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.attacks import run_attack
from harness.attacks.attack import Attack, Dummy
from harness.attacks.patches import Patches, closed_form, embedding_of, unexplained
from harness.base.errors import UsageError
from harness.models import RowModel
from harness.models.networks import MODELS
from harness.observation import Clipping, Observation
from harness.testing import undefended

Victims = Callable[..., Observation]
Digits = Callable[..., tuple[Tensor, Tensor]]


def test_patches_are_those_of_one_solution_by_hand(victims: Victims, digits: Digits) -> None:
    """The normal equations of one victim, patch by patch, cut out of the image by slices."""
    seen, (images, _) = victims(2, model="vit"), digits(2, 1)
    made = closed_form(seen).reshape(2, 8, 8)
    parts = seen.model.layout.split(seen.target)
    for row in range(2):
        errors, mixed = parts["places"][row, 0, 1:].double(), parts["tokens.weight"][row].flatten(1).double()
        patches = torch.linalg.solve(errors @ errors.T, errors @ mixed).reshape(2, 2, 4, 4)
        torch.testing.assert_close(patches[1, 0].float(), made[row, 4:, :4], atol=1e-4, rtol=0)
        torch.testing.assert_close(made[row], images[row, 0, 0], atol=1e-4, rtol=0)


class Renamed(nn.Module):
    """Another transformer: two tokens before the patches, places of its own name, biases left out, a deeper head."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(channels, 24, 4, 4, bias=False)
        self.front, self.where = nn.Parameter(torch.randn(2, 24)), nn.Parameter(torch.randn(6, 24))
        self.mix = nn.TransformerEncoderLayer(24, 2, 32, 0.0, "gelu", batch_first=True)
        self.head = nn.Linear(24, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K)."""
        patches = self.cut(images).flatten(2).mT
        tokens = torch.cat([self.front.expand(len(images), -1, -1), patches], 1) + self.where
        return self.head(self.mix(tokens).mean(1))


class Fixed(Renamed):
    """Its places are not learned."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__(channels, classes)
        places = self.where.detach()
        del self.where
        self.register_buffer("where", places)


class Cut(Renamed):
    """It scales images itself, and multiplies patches that it cuts out by a linear layer."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__(channels, classes)
        self.cut = nn.Sequential(nn.Unfold(4, stride=4), Turned(), nn.Linear(16 * channels, 24), Turned())

    def forward(self, images: Tensor) -> Tensor:
        return super().forward((images - 0.4) / 0.2)


class Normed(Renamed):
    """All that reads its tokens normalises them, so that no error has a mean."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__(channels, classes)
        self.cut = nn.Conv2d(channels, 24, 1, 1)
        self.where, self.last = nn.Parameter(torch.randn(26, 24)), nn.LayerNorm(24)
        self.mix = nn.TransformerEncoderLayer(24, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K)."""
        tokens = torch.cat([self.front.expand(len(images), -1, -1), self.cut(images).flatten(2).mT], 1)
        return self.head(self.last(self.mix(tokens + self.where[: tokens.shape[1]])).mean(1))


class Turned(nn.Module):
    """Its last two dimensions the other way round."""

    def forward(self, values: Tensor) -> Tensor:
        return values.mT


@pytest.fixture(scope="module", autouse=True)
def networks() -> Any:
    """Registers networks of the tests' own for as long as they run."""
    own = {
        "renamed": lambda shape, classes: Renamed(shape[0], classes),
        "fixed": lambda shape, classes: Fixed(shape[0], classes),
        "cut": lambda shape, classes: Cut(shape[0], classes),
        "normed": lambda shape, classes: Normed(shape[0], classes),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, factory in own.items():
            patch.setitem(MODELS._entries, name, factory)
        yield


@pytest.mark.parametrize(("model", "clip"), [
    ("vit", None), ("renamed", None), ("cut", None), ("renamed+normalised(0.5|0.25)", None), ("cut", 0.05),
    *(pytest.param(name, 0.05, marks=pytest.mark.slow) for name in ("vit", "renamed")),
])  # fmt: skip
def test_images_are_exact_and_clips_lose_only_a_scale(
    model: str, clip: float | None, victims: Victims, digits: Digits
) -> None:
    seen, (images, _) = victims(4, model=model), digits(4, 1)
    if clip is not None:
        pieces = seen.target.split(seen.model.layout.sizes, 1)
        clipped = torch.cat([piece * (clip / piece.norm(dim=1, keepdim=True)).clamp(max=1) for piece in pieces], 1)
        seen = replace(seen, target=clipped, clipping=Clipping(clip, "layer", "example"))
        assert (closed_form(seen) - images.flatten(1)).norm(dim=1).min() > 0.1
    made = run_attack(Patches(max_iterations=20), seen).images
    assert ((made - images).square().flatten(1).mean(1).sqrt() <= (1e-3 if clip is None else 0.05)).all()


def test_pixels_in_no_patch_are_like_the_nearest_one_that_is_read() -> None:
    """Of 10 x 9 pixels the patches of 4 x 4 hold 8 x 8: the edge is drawn out."""
    images = torch.rand(2, 1, 3, 10, 9, generator=torch.Generator().manual_seed(0))
    seen = undefended(images, torch.tensor([[1], [2]]), 4, "renamed")
    made = run_attack(Patches(), seen).images
    edges = nn.functional.pad(images[:, 0, :, :8, :8], (0, 1, 0, 2), mode="replicate")
    torch.testing.assert_close(made[:, 0], edges, atol=1e-2, rtol=0)


def test_one_patch_fewer_than_a_normed_token_has_numbers_is_read(victims: Victims, digits: Digits) -> None:
    model, images = RowModel("normed", (1, 1, 23), 10), torch.rand(2, 1, 1, 1, 23)
    weights = model.initial_weights([(0, 0), (0, 1)])
    gradients = model.gradient(weights, images, torch.zeros(2, 1, dtype=torch.long))
    made = closed_form(Observation(model, weights, gradients, 1, ((0, 0), (0, 1))))
    torch.testing.assert_close(made, images.flatten(1), atol=1e-2, rtol=0)


def test_the_rows_of_other_tokens_are_no_patch() -> None:
    found = embedding_of(RowModel("renamed", (1, 8, 8), 10))
    assert (found.weight, found.places, found.first, found.patches, found.width) == ("cut.weight", "where", 2, 4, 24)
    assert found.pixels[1].tolist() == [8 * row + column for row in range(4) for column in range(4, 8)]


@pytest.mark.parametrize(
    ("model", "shape", "said"),
    [
        ("lenet", (1, 8, 8), "whose first layer reads patches that do not overlap"),
        ("mlp2", (1, 8, 8), "whose first layer reads patches that do not overlap"),
        ("fixed", (1, 8, 8), "that learns a row for each place of a patch"),
        ("vit", (1, 64, 64), "not 256 of 192"),
        ("normed", (1, 4, 6), "whose patches' gradients are independent, not 24 of which 23 are"),
    ],
)
def test_networks_without_learned_places_are_refused(model: str, shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        embedding_of(RowModel(model, shape, 10))


def test_what_cannot_be_read_is_not_applicable(victims: Victims) -> None:
    with pytest.raises(UsageError, match="reads one example per observation, not 2"):
        run_attack(Patches(), victims(2, 2, model="vit"))
    seen = victims(2, model="vit")
    seen.model.layout.split(seen.weights)["head.weight"][1] = 0.0
    with pytest.raises(UsageError, match="the head's weights are zero"):
        run_attack(Patches(), seen)
    frozen = victims(2, model="vit+only(tokens|places|encoder)")
    assert run_attack(Patches(), replace(frozen, labels=torch.zeros(2, 1).long())).images.any()
    with pytest.raises(UsageError, match="do not overlap, and is trained"):
        embedding_of(RowModel("vit+only(head)", (1, 8, 8), 10))


def test_a_head_of_zeros_is_none_after_the_first_of_several_steps(victims: Victims) -> None:
    seen = victims(2, model="vit")
    seen.model.layout.split(seen.weights)["head.weight"][:] = 0.0
    assert run_attack(Patches(), replace(seen, local_steps=3)).images.any()


def test_one_image_in_several_steps_is_one_image(victims: Victims, digits: Digits) -> None:
    seen = replace(victims(2, model="vit"), examples=3, local_steps=3, update_model="avg", places=(0, 0, 0))
    torch.testing.assert_close(run_attack(Patches(), seen).images, digits(2, 1)[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("chunk", [1, 2])
def test_a_victim_without_a_gradient_fails_alone_whatever_the_chunk(
    chunk: int, victims: Victims, digits: Digits
) -> None:
    seen = victims(2, model="vit")
    seen.target[0] = 0.0
    made = run_attack(Patches(max_iterations=3), seen, chunk).images
    assert not made[0].any()
    torch.testing.assert_close(made[1], digits(2, 1)[0][1], atol=1e-3, rtol=0)


def test_one_unreadable_victim_leaves_the_others_alone(victims: Victims, digits: Digits) -> None:
    seen = victims(3, model="vit")
    seen.target[1, -1] = torch.nan
    seen.model.layout.split(seen.target)["places"][1] = torch.inf
    made = closed_form(seen)
    assert not made[1].any()
    torch.testing.assert_close(made[[0, 2]], digits(3, 1)[0].flatten(1)[[0, 2]], atol=1e-4, rtol=0)


def test_under_noise_no_scale_is_sought(victims: Victims, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs gradients of the network, and no scale makes such an image right; a readable row beside it has one."""
    seen = victims(3, model="vit")
    seen.target[1:] += 0.1 * torch.randn(seen.target[1:].shape, generator=torch.Generator().manual_seed(0))
    seen, sought = replace(seen, clipping=Clipping(9.0, "layer", "example")), list[int]()

    def counted(attack: Attack, observation: Observation, dummy: Dummy) -> Tensor:
        sought.append(observation.rows)
        return dummy.images.flatten(1).sum(1)

    monkeypatch.setattr(Attack, "matching", counted)
    shares = unexplained(seen)
    assert shares[0] < 1e-6 and (shares[1:] > 0.01).all()
    run_attack(Patches(max_iterations=2), seen)
    assert sought and set(sought) == {1}
    run_attack(Patches(max_iterations=2), seen.take(torch.tensor([1, 2])))
    assert set(sought) == {1}
