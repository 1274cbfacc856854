"""Whether a client's network is one that ``judge`` can play, tried while the federation runs and can still be changed.

A copy is tried on the CPU, on examples of its own; the client's network and torch's random numbers stay as they are.
"""

import copy
import logging
import time

import torch
from torch import Tensor, nn

from harness.base.errors import UsageError, in_one_line

log = logging.getLogger("harness.capture")
# Numbers of the largest network that is tried: copies of it take memory that the client may need.
_MOST = 2**25
# Seconds of a few forward passes, beyond which no gradients are tried: they would take some thirty times as long.
_LONGEST = 0.2
# What was found of the networks of this process: later rounds need not try again.
_TRIED: dict[tuple[object, ...], tuple[str | None, str | None]] = {}


def why_not_played(network: nn.Module, image_shape: tuple[int, ...], classes: int) -> tuple[str | None, str | None]:
    """Return why a network is no function of weights and one example, or why only its code cannot be played; else None.

    Another network that computes the same may be played in the place of one whose code cannot be.

    Args:
        network: the client's, which is left as it is.
        image_shape: (C, H, W).
    """
    count = sum(one.numel() for one in network.parameters())
    modes = tuple(layer.training for layer in network.modules())
    key = type(network), image_shape, classes, count, modes
    if count > _MOST:
        return None, None
    if key not in _TRIED:
        _TRIED[key] = None, None
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.autocast("cpu", enabled=False):
                _TRIED[key] = _found(_own_copy(network), image_shape, classes)
        except Exception as error:  # of somebody's own code: then nothing is known
            log.info("harness: a network was not tried (%s)", in_one_line(error))
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
    return _TRIED[key]


def _found(network: nn.Module, image_shape: tuple[int, ...], classes: int) -> tuple[str | None, str | None]:
    from harness.models.batch_norm import in_evaluation_mode  # which a client pays for here alone
    from harness.models.checking import Trial, close, refuse_other_functions
    from harness.models.row_model import refuse_unplayable

    name, trial = type(network).__name__, Trial.of(network, image_shape, classes)
    start = time.monotonic()
    with in_evaluation_mode(network), torch.no_grad():
        try:
            refuse_other_functions(name, network, trial, classes)
        except UsageError as problem:
            images = trial.images[0]
            made, again = network(images.clone()), network(images.clone())
            alone = torch.cat([network(one[None].clone()) for one in images])
            same = torch.equal(made, again) and close(alone, made)
            return (None, str(problem)) if same else (str(problem), None)
    if time.monotonic() - start > _LONGEST:
        return None, None
    try:
        refuse_unplayable(name, network, image_shape, classes)
    except UsageError as problem:
        return None, str(problem)
    return None, None


def _own_copy(network: nn.Module) -> nn.Module:
    """On the CPU, all of it trained, and without hooks, which may tell others of what they see."""
    # What layers compute of their weights at each pass, as spectral norms do, has no copy of its own.
    computed = [one for layer in network.modules() for one in vars(layer).values() if isinstance(one, Tensor)]
    known: dict[int, object] = {id(one): one.detach().clone() for one in computed if not one.is_leaf}
    made = copy.deepcopy(network, known).cpu().float().requires_grad_()
    for layer in made.modules():
        for hooks in (layer._forward_hooks, layer._backward_hooks, layer._backward_pre_hooks):
            hooks.clear()
    return made
