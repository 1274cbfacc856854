"""Networks of all kinds that people write: each is computed as the module computes it, or refused in one line."""

import sys
import types
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from harness.base.errors import UsageError
from harness.base.words import TextShape, images_of
from harness.models import RowModel

SHAPE, CLASSES = (1, 8, 8), 4


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.head = nn.Conv2d(1, 3, 3, padding=1), nn.Linear(192, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).flatten(1))

    def features(self, images: Tensor) -> Tensor:
        return torch.sigmoid(self.convolution(images))


class LooksAtTypes(Plain):
    def features(self, images: Tensor) -> Tensor:
        values = self.convolution(images)
        return values.tanh() if isinstance(self.convolution, nn.Conv2d) else values


class KeepsAList(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.parts = [self.convolution]

    def features(self, images: Tensor) -> Tensor:
        return self.parts[0](images).sigmoid()


class KeepsAClosure(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.features = lambda images: self.convolution(images).sigmoid()


class Views(Plain):
    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).view(len(images), -1))


class OneNumber(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def features(self, images: Tensor) -> Tensor:
        return super().features(images) * self.scale


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Conv2d(1, 8, 4, 4)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.head = nn.Linear(8, CLASSES)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.layer(self.tokens(images).flatten(2).mT).mean(1))


class HeadNamedFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.first = nn.Linear(CLASSES, CLASSES), nn.Linear(64, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.first(images.flatten(1)).sigmoid())


def hooked(initial_head: float | None = None) -> nn.Module:
    network = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(192, CLASSES))
    network[0].register_forward_hook(lambda layer, inputs, output: 3 * output.sin())
    if initial_head is not None:
        nn.init.constant_(network[3].weight, initial_head)
        nn.init.constant_(network[3].bias, initial_head)
    return network


ACCEPTED: dict[str, Callable[[], nn.Module]] = {
    "plain": Plain, "looks at types": LooksAtTypes, "keeps a list": KeepsAList, "keeps a closure": KeepsAClosure,
    "views": Views, "one number": OneNumber, "attends": Attends, "head named first": HeadNamedFirst,
    "hooked": hooked, "hooked before zeros": lambda: hooked(0.0),
    "64 bits": lambda: Plain().double(),
}  # fmt: skip


def changing(change: Callable[[nn.Module, Tensor], Tensor]) -> Callable[[], nn.Module]:
    """A network that does something with its images first."""

    class Changing(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, images: Tensor) -> Tensor:
            return super().forward(change(self, images))

    return Changing


def giving(change: Callable[[Tensor], object]) -> Callable[[], nn.Module]:
    """A network that gives something else than logits."""

    class Giving(Plain):
        def forward(self, images: Tensor) -> object:
            return change(super().forward(images))

    return Giving


def untrained_convolution() -> nn.Module:
    network = Plain()
    network.convolution.requires_grad_(False)
    return network


def drawn_by_numpy() -> nn.Module:
    network = Plain()
    network.head.weight.data = torch.tensor(np.random.default_rng().normal(size=(CLASSES, 192)))
    return network


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "mixes examples": (changing(lambda _, images: images - images.mean(0)), "mixes the examples of a batch"),
    "untracked statistics": (
        lambda: nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), nn.Flatten(), nn.Linear(64, 4)).eval(),
        "mixes the examples",
    ),
    "random": (
        changing(lambda _, images: images + torch.randn_like(images)),
        "two forward passes.*turn off the noise",
    ),
    "drops out": (
        changing(lambda _, images: nn.functional.dropout(images, 0.5)),
        r"two forward passes.*differ; turn off the noise that its forward\(\) draws$",
    ),
    "counts": (changing(lambda module, images: images * module.calls.add_(1)), "changes its buffers"),
    "more classes than the data": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 9)),
        "one logit per class, or give data in which its last class, label 8, occurs$",
    ),
    "fewer classes": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), "return one logit per class$"),
    "overwrites": (changing(lambda _, images: images.sub_(0.5)), r"changes its input in place.*x\.clone"),
    "a number": (
        changing(lambda module, images: images * module.head.bias.max().item()),
        "several clients at once.*item",
    ),
    "a pair": (giving(lambda logits: (logits, logits)), "gives tuple for 2 images of 4 classes"),
    "squeezed": (giving(lambda logits: logits.squeeze()), r"gives \(4,\) for 1 images"),
    "too many": (giving(lambda logits: torch.cat([logits, logits], 1)), r"gives \(2, 8\)"),
    "too large": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(65, 4)), r"fails on images \(2, 1, 8, 8\).*fix it"),
    "nothing to train": (nn.Flatten, "has no parameters to train"),
    "lazy": (lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(4)), "give it its number of inputs"),
    "drawn by numpy": (drawn_by_numpy, "draw them with torch"),
}


@pytest.fixture(autouse=True)
def module() -> Iterator[types.ModuleType]:
    """An importable module that a test puts its factory into."""
    sys.modules["somebodys"] = made = types.ModuleType("somebodys")
    yield made
    del sys.modules["somebodys"]


def row_model(module: types.ModuleType, factory: Callable[[], nn.Module]) -> RowModel:
    module.network = lambda image_shape, classes: factory()
    return RowModel("somebodys:network", SHAPE, CLASSES)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", ACCEPTED)
def test_every_gradient_is_the_modules_own(name: str, rows: int, module: types.ModuleType) -> None:
    model = row_model(module, ACCEPTED[name]).to(torch.device("cpu"), torch.float64)
    random = torch.Generator().manual_seed(0)
    weights = model.initial_weights([(0, row) for row in range(rows)]).double()
    weights += torch.randn(weights.shape, generator=random, dtype=torch.float64) / 10
    images = torch.rand(rows, 2, *SHAPE, generator=random, dtype=torch.float64)
    labels = torch.randint(CLASSES, (rows, 2), generator=random)
    trained = model.example_gradients(weights, images, labels, None, 2)
    made = torch.stack([model.gradient(weights, images, labels), trained.mean(), trained.materialise().mean(1)])
    for row in range(rows):
        own = model.plain(weights[row])
        parts = torch.autograd.grad(nn.functional.cross_entropy(own(images[row]), labels[row]), list(own.parameters()))
        truth = torch.cat([part.flatten() for part in parts])
        assert truth.norm() > 0.01
        torch.testing.assert_close(made[:, row], truth.expand(3, -1), rtol=1e-9, atol=1e-12)
    pixels = images.clone().requires_grad_()
    (twice,) = torch.autograd.grad(model.gradient(weights, pixels, labels, create_graph=True).square().sum(), pixels)
    assert twice.abs().max() > 0


def test_data_of_one_class_are_refused() -> None:
    with pytest.raises(UsageError, match="one class only; give two classes"):
        RowModel("mlp", SHAPE, 1)


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_client_could_train_like_this_is_refused(name: str, module: types.ModuleType) -> None:
    factory, message = REFUSED[name]
    with pytest.raises(UsageError, match=message) as caught:
        row_model(module, factory)
    assert "\n" not in str(caught.value)


def recurrent(kind: type[nn.RNNBase]) -> Callable[[], nn.Module]:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.head = kind(8, 6, batch_first=True), nn.Linear(6, CLASSES)

        def forward(self, images: Tensor) -> Tensor:
            return self.head(self.rows(images.flatten(1, 2))[0][:, -1])

    return Recurrent


@pytest.mark.parametrize(
    "factory", [untrained_convolution, *(recurrent(kind) for kind in (nn.RNN, nn.LSTM, nn.GRU))],
    ids=["partly frozen", "RNN", "LSTM", "GRU"],
)  # fmt: skip
def test_what_is_trained_has_the_gradient_that_a_client_sends(
    factory: Callable[[], nn.Module], module: types.ModuleType
) -> None:
    model = row_model(module, factory)
    weights = model.initial_weights([(0,), (1,)])
    images, labels = torch.rand(2, 3, *SHAPE), torch.tensor([[0, 1, 2], [3, 2, 1]])
    found = model.gradient(weights, images, labels)
    for row in range(2):
        client = model.plain(weights[row])
        loss = nn.functional.cross_entropy(client(images[row]), labels[row])
        parts = torch.autograd.grad(loss, [one for one in client.parameters() if one.requires_grad])
        torch.testing.assert_close(found[row], torch.cat([part.flatten() for part in parts]))
    kept = [name for name, parameter in factory().named_parameters() if parameter.requires_grad]
    assert list(model.layout.names) == kept


def test_labels_are_read_at_the_layer_that_is_called_last(module: types.ModuleType) -> None:
    assert row_model(module, HeadNamedFirst).last_linear() == ("head.weight", "head.bias")


class OnlyOnce(torch.autograd.Function):
    """The identity, with a gradient that refuses to become part of a graph."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def setup_context(ctx: object, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError("derivative of OnlyOnce is not implemented")
        return gradient


class DerivedOnce(Plain):
    def features(self, images: Tensor) -> Tensor:
        return OnlyOnce.apply(super().features(images))


class OfBytes(Plain):
    def features(self, images: Tensor) -> Tensor:
        return super().features((255 * images).to(torch.uint8).float())


@pytest.mark.parametrize("network", [DerivedOnce, OfBytes])
def test_a_network_without_second_derivative_trains_but_cannot_be_matched(
    network: type[Plain], module: types.ModuleType
) -> None:
    model = row_model(module, network)
    weights = model.initial_weights([(0, 0)])
    images, labels = torch.rand(1, 2, *SHAPE), torch.tensor([[0, 1]])
    assert model.gradient(weights, images, labels).abs().max() > 0
    with pytest.raises(UsageError, match="has no second derivative, which this attack needs"):
        model.gradient(weights, images.requires_grad_(), labels, create_graph=True)


class KeepsATensor(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.fixed = torch.ones(3, 1, 1)

    def features(self, images: Tensor) -> Tensor:
        return nn.functional.conv2d(super().features(images), self.fixed[None].expand(3, 3, 1, 1))


def test_what_does_not_move_with_the_network_is_named(module: types.ModuleType) -> None:
    model = row_model(module, KeepsATensor).to(torch.device("cpu"), torch.float32)
    with pytest.raises(UsageError, match=r"fails on cpu in float64.*register_buffer"):
        model.to(torch.device("cpu"), torch.float64)


class Reads(nn.Module):
    """Token numbers (B, T), one row of a table for each place; ``looks``: its flow depends on where texts end."""

    def __init__(self, vocabulary: int, places: int, classes: int, looks: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, 4), nn.Embedding(places, 4)
        self.head, self.looks = nn.Linear(4, classes), looks

    def forward(self, tokens: Tensor) -> Tensor:
        there = (tokens != 0)[..., None]
        hidden = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        if self.looks and bool(there.all()):
            return self.head(hidden.tanh().mean(1))
        return self.head((hidden.tanh() * there).sum(1) / there.sum(1).clamp_min(1))


def reads(vocabulary: int, places: int, classes: int) -> nn.Module:
    return Reads(vocabulary, places, classes)


def looks(vocabulary: int, places: int, classes: int) -> nn.Module:
    return Reads(vocabulary, places, classes, looks=True)


@pytest.mark.parametrize("factory", ["reads", "looks"])
def test_a_network_of_texts_takes_token_numbers(factory: str) -> None:
    model = RowModel(f"{__name__}:{factory}", TextShape(9, 5), CLASSES)
    assert model.vocabulary == 9
    weights = model.initial_weights([("a",), ("b",)])
    tokens, labels = torch.tensor([[[3, 8, 2, 0, 0]], [[7, 7, 1, 4, 4]]]), torch.tensor([[1], [2]])
    for row, gradient in enumerate(model.gradient(weights, images_of(tokens), labels)):
        network = Reads(9, 5, CLASSES)
        network.load_state_dict(model.state(weights[row]))
        nn.functional.cross_entropy(network(tokens[row]), labels[row]).backward()
        made = [one.grad for one in network.parameters() if one.grad is not None]
        assert torch.allclose(gradient, torch.cat([one.flatten() for one in made]), atol=1e-6)
    # What an attacker tries may be no token at all.
    assert model.logits(weights, images_of(tokens * 5_000)).isfinite().all()


def of_images(image_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(image_shape[-1], classes)


def wrong_places(vocabulary: int, places: int, classes: int) -> nn.Module:
    return Reads(vocabulary, places - 1, classes)


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (
            "of_images",
            r"failed to build for texts of 9 tokens and 5 places: .*; name a factory \(vocabulary, places, classes\)",
        ),
        ("wrong_places", r"fails on texts of token numbers \(2, 5\): IndexError: index out of range in self; fix it"),
    ],
)
def test_a_network_that_reads_no_such_texts(factory: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        RowModel(f"{__name__}:{factory}", TextShape(9, 5), CLASSES)
