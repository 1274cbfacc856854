"""The networks of the papers and of torchvision (``torchvision:resnet18``), and any network of the user's own.

A factory takes the image shape (C, H, W) and the number of classes and returns a module that maps images
(B, C, H, W) in [0, 1] to logits (B, K). None has trained weights. The user's own networks of texts are made of the size
of the vocabulary, the most tokens of a text and the number of classes, and take token numbers (B, T).
"""

import difflib
import importlib
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.base.errors import UsageError, in_one_line
from harness.base.layers import is_random
from harness.base.registry import Registry, own_code
from harness.base.words import TextShape, tokens_of
from harness.models.batch_norm import keep_running_statistics
from harness.models.changes import split_name

PREFIX = "torchvision:"
_COLOURS = 3


def torchvision_factory(name: str) -> Callable[[tuple[int, ...], int], nn.Module]:
    """A factory (image_shape, classes) of a network of torchvision.

    Raises:
        UsageError: there is no such network; the nearest names are told.
    """
    if name not in _names():
        near = difflib.get_close_matches(name, _names(), n=3)
        hint = f"did you mean {' or '.join(PREFIX + one for one in near)}?" if near else "see torchvision's list_models"
        raise UsageError(f"unknown network {name!r} of torchvision; {hint}")

    def make(image_shape: tuple[int, ...], classes: int) -> nn.Module:
        from torchvision import models

        channels, height, width = image_shape
        if channels != _COLOURS:
            raise UsageError(
                f"model {PREFIX + name!r} takes images of {_COLOURS} colours, not of {channels}; use --dataset cifar10 "
                "or other images in colour, or another --model"
            )
        # Only vision transformers count their patches when they are made.
        size = {"image_size": height} if name.startswith("vit_") else {}
        if size and height != width:
            raise UsageError(f"model {PREFIX + name!r} takes square images, not {height}x{width}; use another --model")
        with warnings.catch_warnings():
            # Of how later versions will draw first weights.
            warnings.simplefilter("ignore", FutureWarning)
            return models.get_model(name, weights=None, num_classes=classes, **size)

    return make


def is_of_torchvision(name: str) -> bool:
    """Return whether a name without the prefix is one of torchvision's."""
    return name in _names()


def _names() -> list[str]:
    """Return the names of all networks of torchvision that give logits of whole images."""
    from torchvision import models  # here, since it is slow to load

    return models.list_models(module=models)


ImageShape = tuple[int, ...]
Factory = Callable[[ImageShape, int], nn.Module]

MODELS: Registry[Factory] = Registry("model", "harness.models")


@MODELS.register("lenet")
def attack_lenet(image_shape: ImageShape, classes: int) -> nn.Module:
    """The attack LeNet: four 5x5 sigmoid convolutions of 12 channels, one linear layer, all weights U[-0.5, 0.5].

    Source: Zhu et al. 2019 (DLG) and the released notebooks of CPL; 17,038 parameters on 28x28 grey images.
    """
    channels, height, width = image_shape
    refuse_table_rows("lenet", image_shape)
    layers: list[nn.Module] = []
    for inputs, stride in ((channels, 2), (12, 2), (12, 1), (12, 1)):
        layers += [nn.Conv2d(inputs, 12, 5, stride=stride, padding=2), nn.Sigmoid()]
    features = 12 * math.ceil(height / 4) * math.ceil(width / 4)
    network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, classes))
    for parameter in network.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return network


@MODELS.register("cnn", "keras_cnn")
def accuracy_cnn(image_shape: ImageShape, classes: int) -> nn.Module:
    """The accuracy network of Fed-αCDP: two 3x3 ReLU convolutions with pooling, one linear layer, no biases.

    Source: released training script of Fed-αCDP; Glorot-uniform weights, 34,720 parameters on MNIST.
    """
    channels, height, width = image_shape
    refuse_table_rows("cnn", image_shape)
    rows, columns = ((((size - 2) // 2) - 2) // 2 for size in (height, width))
    if min(rows, columns) < 1:
        raise UsageError(f"model 'cnn' needs images of at least 10x10 pixels, got {height}x{width}; use --model mlp")
    network = nn.Sequential(
        nn.Conv2d(channels, 32, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * rows * columns, classes, bias=False),
    )  # fmt: skip
    for parameter in network.parameters():
        nn.init.xavier_uniform_(parameter)
    return network


@MODELS.register("mlp")
def attack_mlp(image_shape: ImageShape, classes: int) -> nn.Module:
    """A fully connected network d-200-100-K with sigmoids, PyTorch's default initialisation."""
    features = math.prod(image_shape)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(features, 200), nn.Sigmoid(), nn.Linear(200, 100), nn.Sigmoid(), nn.Linear(100, classes)
    )


@MODELS.register("mlp2")
def accuracy_mlp(image_shape: ImageShape, classes: int) -> nn.Module:
    """The table network of Fed-αCDP: d-200-100-K with ReLU, PyTorch's default initialisation.

    Source: Fed-αCDP names two hidden layers for its tables; their widths are ours, the paper gives none.
    """
    features = math.prod(image_shape)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(features, 200), nn.ReLU(), nn.Linear(200, 100), nn.ReLU(), nn.Linear(100, classes)
    )


@MODELS.register("logistic")
def logistic_regression(image_shape: ImageShape, classes: int) -> nn.Module:
    """Multinomial logistic regression, d-K, PyTorch's default initialisation (DP-SCAFFOLD's model)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(image_shape), classes))


@MODELS.register("tempered_cnn")
def tempered_cnn(image_shape: ImageShape, classes: int) -> nn.Module:
    """The small network for private training: two tanh convolutions, overlapping pools, a layer of 32.

    Source: released code of Heikkilä et al., after Papernot et al. (AAAI 2021): a tempered sigmoid, which is tanh at
    scale 2, temperature 2 and offset 1; 26,010 parameters on MNIST, PyTorch's default initialisation.
    """
    channels, height, width = image_shape
    refuse_table_rows("tempered_cnn", image_shape)
    rows, columns = (((size - 4) // 2 - 4) // 2 for size in (height, width))
    if min(rows, columns) < 1:
        raise UsageError(
            f"model 'tempered_cnn' needs images of at least 16x16 pixels, got {height}x{width}; use --model mlp"
        )
    return nn.Sequential(
        nn.Conv2d(channels, 16, 8, stride=2, padding=2), nn.Tanh(), nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, stride=1),
        nn.Flatten(), nn.Linear(32 * rows * columns, 32), nn.Tanh(), nn.Linear(32, classes),
    )  # fmt: skip


def refuse_table_rows(name: str, image_shape: ImageShape) -> None:
    """A convolution looks at neighbours, and the features of a table row, an image of one row, have none."""
    if image_shape[-2] == 1:
        raise UsageError(
            f"model {name!r} is convolutional and needs images, not table rows of {image_shape[-1]} features; "
            "use --model mlp2"
        )


def is_own(name: str) -> bool:
    """Return whether a network is not one of this project's: ``module:factory``, another package's, or given."""
    bare = name.partition("+")[0]
    return ":" in name or MODELS.is_given(bare) or bool(MODELS.outside(bare))


def find_factory(name: str) -> Factory:
    """A registered factory, torchvision's, or the user's own given as ``module:factory``; changes are left aside.

    ``module:Class()`` names what is called without arguments.

    Raises:
        UsageError: the name is unknown, or the module or attribute can't be found.
    """
    name, _ = split_name(name)
    if ":" not in name:
        return _registered(name)
    if name.startswith(PREFIX):
        return torchvision_factory(name.removeprefix(PREFIX))
    module_name, _, attribute = name.partition(":")
    try:
        with own_code():
            module = importlib.import_module(module_name)
    except Exception as error:  # the user's own code may raise anything
        raise UsageError(
            f"cannot import model {name!r} ({in_one_line(error)}); check the module name and PYTHONPATH"
        ) from error
    bare = attribute.removesuffix("()")
    factory: Factory | None = getattr(module, bare, None)
    if factory is None:
        raise UsageError(f"module {module_name!r} has no factory {bare!r}; check its name")
    if not callable(factory):
        raise UsageError(f"{name!r} is not callable; name a function (image_shape, classes) -> torch.nn.Module")
    if bare != attribute:
        made: Callable[[], nn.Module] = factory  # type: ignore[assignment]  # as its name says
        return lambda *_: made()
    return factory


def _registered(name: str) -> Factory:
    try:
        return MODELS[name]
    except UsageError:
        if is_of_torchvision(name):
            raise UsageError(f"model {name!r} is torchvision's; name it {PREFIX + name}") from None
        raise


_FEWEST_CLASSES = 2


def build_module(name: str, image_shape: ImageShape, classes: int, seed: int) -> nn.Module:
    """A freshly initialised module, a pure function of its arguments; PyTorch's global random state is left alone.

    Raises:
        UsageError: see :func:`find_factory`; also a factory that does not return a module, or one whose behaviour
            depends on random layers; or a single class.
    """
    if classes < _FEWEST_CLASSES:
        raise UsageError("the data have one class only; give two classes: a network that tells one learns nothing")
    factory, (_, changes) = find_factory(name), split_name(name)
    own = ":" in name and not name.startswith(PREFIX)
    texts = image_shape if own and isinstance(image_shape, TextShape) else None
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: it seeds accelerators too, which nothing puts back, and is slow where there is none.
        torch.default_generator.manual_seed(seed)
        module = _called(name, factory, image_shape, classes, texts)
        for change in changes:  # some draw weights
            try:
                module = change(module)
            except UsageError as error:
                raise UsageError(f"model {name!r}: {error}") from error
    if texts is not None:
        _let_read(module, texts.vocabulary)
    _refuse_random_layers(name, module)
    _fix_untrained_parameters(module)
    _refuse_untrained_networks(name, module)
    _keep_what_layers_get(module)
    keep_running_statistics(module)
    return module.float()


def _called(
    name: str, factory: Callable[..., nn.Module], shape: ImageShape, classes: int, texts: TextShape | None
) -> nn.Module:
    """The network of a factory, which may be a user's own."""
    try:
        with own_code():
            module = factory(shape, classes) if texts is None else _of_texts(factory, texts, classes)
    except UsageError:
        raise
    except Exception as error:  # the user's own code may raise anything
        problem = in_one_line(error)
        raise UsageError(f"model {name!r} failed to build for {_said(shape, problem)}") from error
    if not isinstance(module, nn.Module):
        raise UsageError(f"model {name!r} returned {type(module).__name__}; its factory must return a torch.nn.Module")
    if isinstance(module, torch.jit.ScriptModule):
        raise UsageError(f"model {name!r} returned a script of torch.jit; return the network before it is made one")
    return module.module if isinstance(module, nn.DataParallel) else module


def _of_texts(factory: Callable[..., nn.Module], shape: TextShape, classes: int) -> nn.Module:
    return factory(shape.vocabulary, shape.places, classes)


def _said(image_shape: ImageShape, problem: str) -> str:
    """Return what a factory was called with, what then went wrong, and how to fix it."""
    if not isinstance(image_shape, TextShape):
        return f"images {image_shape}: {problem}; fix it"
    return (
        f"texts of {image_shape.vocabulary} tokens and {image_shape.places} places: {problem}; name a factory "
        "(vocabulary, places, classes)"
    )


def _let_read(module: nn.Module, vocabulary: int) -> None:
    """A network of token numbers (B, T) takes texts as they are here; numbers that it does not know are its last."""
    module.vocabulary = vocabulary  # pyright: ignore[reportArgumentType]  # Module declares parameters and layers only
    module.register_forward_pre_hook(_Tokens(vocabulary))


@dataclass(frozen=True)
class _Tokens:
    """A hook that makes token numbers of the bits of texts."""

    vocabulary: int

    def __call__(self, _: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (tokens_of(given[0]).clamp_max(self.vocabulary - 1),)


def _keep_what_layers_get(module: nn.Module) -> None:
    """Layers that overwrite their input compute the same in new memory; gradients by that input then stay available."""
    for layer in module.modules():
        if getattr(layer, "inplace", False):
            layer.inplace = False  # pyright: ignore[reportArgumentType]  # Module declares parameters and layers only


def _fix_untrained_parameters(module: nn.Module) -> None:
    """Replace each parameter that ``requires_grad_(False)`` keeps from training by a buffer of the same name: it has no
    gradient."""
    for layer in module.modules():
        for name, parameter in list(layer._parameters.items()):
            if parameter is not None and not parameter.requires_grad and not nn.parameter.is_lazy(parameter):
                del layer._parameters[name]
                layer.register_buffer(name, parameter.detach())


def _refuse_untrained_networks(name: str, module: nn.Module) -> None:
    named = dict(module.named_parameters())
    if not named:
        raise UsageError(f"model {name!r} has no parameters to train; give it a layer with weights")
    for key, parameter in named.items():
        if nn.parameter.is_lazy(parameter):
            raise UsageError(f"model {name!r} has a lazy layer ({key}); give it its number of inputs")


def _refuse_random_layers(name: str, module: nn.Module) -> None:
    for layer in module.modules():
        if layer.training and is_random(layer):
            raise UsageError(
                f"model {name!r} has active dropout, whose gradients are random; name the model "
                f"{name}+no_dropout, or return it from the factory in evaluation mode (module.eval()) or set p=0"
            )


# ResNet-8 for small images, with BatchNorm in training mode.
#
# Source: He et al., "Deep Residual Learning for Image Recognition" (CVPR 2016), section 4.2: 6n + 2 layers with n =
# 1, of 16, 32 and 64 channels, and shortcuts without parameters (option A).


class _Block(nn.Module):
    """Two 3x3 convolutions, and their input added: where it has to fit, every second pixel, zeros for new channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.first_norm, self.second_norm = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.stride, self.added = stride, outputs - inputs

    def forward(self, values: Tensor) -> Tensor:
        hidden = functional.relu(self.first_norm(self.first(values)))
        shortcut = values[..., :: self.stride, :: self.stride]
        if self.added:
            shortcut = functional.pad(shortcut, (0, 0, 0, 0, 0, self.added))
        return functional.relu(self.second_norm(self.second(hidden)) + shortcut)


class ResNet8(nn.Module):
    """A convolution, three residual blocks, the mean over all places, one linear layer; He's normal weights."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(_Block(16, 16, 1), _Block(16, 32, 2), _Block(32, 64, 2))
        self.head = nn.Linear(64, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        features = self.blocks(torch.relu(self.norm(self.convolution(images))))
        return self.head(features.mean((2, 3)))


@MODELS.register("resnet8")
def resnet8(image_shape: ImageShape, classes: int) -> nn.Module:
    """ResNet-8: three residual blocks of 16, 32 and 64 channels, BatchNorm in training mode (75,290 parameters)."""
    refuse_table_rows("resnet8", image_shape)
    return ResNet8(image_shape[0], classes)
