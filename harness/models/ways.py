"""The ways to evaluate a network for rows, the fastest first."""

from dataclasses import dataclass

from torch import nn

from harness.base.vectors import Layout
from harness.models.feature_extractor import FeatureExtractor
from harness.models.imprint import Fronted
from harness.models.lone_rows import LoneRows, with_lone_layers
from harness.models.row_operators import with_row_operators
from harness.models.row_sequence import RowSequence, row_sequence
from harness.models.rows import ChainedRows, EvaluatesRows, MappedRows, OwnRows, Rows
from harness.models.transformer import torchvision_transformer

# Weights from which a network that is no chain is faster one row at a time, measured on networks of 13 thousand to 11
# million of them; fewer where batches are normalised as a whole, since these are never of one image.
_LARGE, _LARGE_FOR_BATCHES = 2**19, 2**16
# Weights from which a network that evaluates rows itself is no faster by it, and takes several times the memory.
_LARGEST_ITSELF = 2**25
# What chains and transformers take by name; a buffer of such a name was kept from training.
_WEIGHTS = {"weight", "bias", "in_proj_weight", "in_proj_bias", "class_token", "pos_embedding"}


@dataclass(frozen=True)
class Way:
    """How rows are evaluated: as a chain, by the network's own ``row_logits``, or as a network with ``other_layers`` or
    its own, together or alone."""

    sequence: RowSequence | None
    other_layers: bool
    alone: bool = False
    itself: bool = False

    def module(self, plain: nn.Module) -> nn.Module:
        """The network that is evaluated: ``plain`` itself, or a copy with other layers."""
        if not self.other_layers:
            return plain
        return with_lone_layers(plain) if self.alone else with_row_operators(plain)

    def rows(self, module: nn.Module, layout: Layout) -> Rows:
        """What evaluates such a ``module``."""
        if self.sequence is not None:
            return ChainedRows(self.sequence, layout, looks_back=isinstance(module, Fronted))
        if self.itself and (own := _own_rows(module)):
            return OwnRows(own, layout)
        return LoneRows(module, layout) if self.alone else MappedRows(module, layout)


def ways_of(module: nn.Module, weights: int, joint: bool) -> list[Way]:
    """Those that a network of so many ``weights`` has; ``joint``: it normalises batches as a whole."""
    together, alone = ([Way(None, other, alone=one) for other in (True, False)] for one in (False, True))
    # These take a layer's weights by name, so all of them are trained, and each is of one layer.
    by_name = _trains_each_layer(module)
    chain = row_sequence(module) if by_name else None
    if chain:
        return [Way(chain, True), *together]
    if by_name and not joint and weights < _LARGEST_ITSELF and _own_rows(module):
        together.insert(0, Way(None, False, itself=True))
        return together
    large = weights >= (_LARGE_FOR_BATCHES if joint else _LARGE)
    recurrent = any(isinstance(layer, nn.RNNBase | nn.RNNCellBase) for layer in module.modules())
    if large:
        return [*alone, *together]
    # The library's recurrent layers can only be evaluated alone.
    return [*together, *alone] if recurrent else together


def _trains_each_layer(module: nn.Module) -> bool:
    """Whether every layer has weights of its own, all of which are trained; those of a feature extractor aside."""
    named = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    extractors = [one for one in module.modules() if isinstance(one, FeatureExtractor)]
    aside = {id(layer) for one in extractors for layer in one.modules()}
    fixed = any(_WEIGHTS & layer._buffers.keys() for layer in module.modules() if id(layer) not in aside)
    return len(named) == len(list(module.parameters())) and not fixed


def _own_rows(module: nn.Module) -> EvaluatesRows | None:
    """How a network evaluates rows together itself, if it is one that does."""
    return module if isinstance(module, EvaluatesRows) else torchvision_transformer(module)
