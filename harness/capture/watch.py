"""What a client's local training shows of itself while it runs: its network, its optimizer's steps, its loader.

Hooks of torch look on; no random number is drawn and no value changes. Sources: torch 2's
``register_optimizer_step_pre_hook`` and ``_post_hook``, ``Module.register_forward_hook``, ``Tensor.register_hook``, and
``GradScaler``, which leaves out the steps of gradients that are not finite.
"""

import gc
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import RandomSampler, SequentialSampler, SubsetRandomSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.data.distributed import DistributedSampler

from harness.base.errors import UsageError, in_one_line
from harness.judging.capture import Declared, facts_of

# What libraries wrap around a network, as its only part.
_WRAPPERS = {
    "OptimizedModule", "DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "GradSampleModule",
}  # fmt: skip
# Samplers whose passes take every example once.
_IN_PASSES = (RandomSampler, SequentialSampler, SubsetRandomSampler, DistributedSampler)


@dataclass
class _Pass:
    """A batch that went through a network, and whether a gradient came back through it."""

    examples: int
    back: bool = False


@dataclass
class _Network:
    """A network that may be the client's, and what went through it."""

    module: nn.Module
    image_shape: tuple[int, ...] | None = None
    classes: int | None = None
    waiting: list[_Pass] = field(default_factory=list)
    steps: list[tuple[int, ...]] = field(default_factory=list)

    def passed(self, given: Iterable[Any], made: Any) -> None:
        """A batch went through it."""
        images = next((one for one in given if isinstance(one, Tensor) and one.dim() > 1), None)
        if images is None:
            return
        if self.waiting and all(one.back for one in self.waiting) and self._dropped():
            self.waiting.clear()  # a step that a scaler skipped, or a warm-up
        outputs = list(made.values()) if isinstance(made, Mapping) else made if isinstance(made, tuple) else [made]
        output = next((one for one in outputs if isinstance(one, Tensor) and one.requires_grad), None)
        if images.dim() == 4:
            self.image_shape = tuple(images.shape[1:])
        if output is None:
            return
        if output.dim() == 2:
            self.classes = int(output.shape[1])
        one = _Pass(len(images))
        self.waiting.append(one)
        output.register_hook(lambda _: setattr(one, "back", True))

    def stepped(self, counts: bool) -> None:
        """The optimizer took a step, or only seemed to."""
        if counts:
            self.steps.append(tuple(one.examples for one in self.waiting if one.back))
        self.waiting.clear()

    def _dropped(self) -> bool:
        """Whether the gradients of all earlier passes are gone, or are none that a step is taken with."""
        made = [one.grad for one in self.module.parameters() if one.grad is not None]
        return not any(bool(one.any()) for one in made) or not all(bool(one.isfinite().all()) for one in made)


class _Look:
    """A hook that leaves no trace in copies of the network, nor in files that hold it."""

    def __init__(self, look: Callable[..., None]) -> None:
        self._look = look

    def __call__(self, *given: Any) -> None:
        self._look(*given)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


class Watch:
    """Context that watches one client's local training.

    Args:
        network: the client's; None where it is built inside, and then only this thread is watched.
        loader: of its batches; None where the one in use is to be found.
        everywhere: watch all threads.
    """

    def __init__(self, network: nn.Module | None = None, loader: Any = None, everywhere: bool = False) -> None:
        self.problems: list[str] = []
        self.rates: list[float] = []
        self.carried = False
        self._given, self._loader = network, None if loader is None else _facts_of_loader(loader)
        self._thread = None if everywhere else threading.get_ident()
        self._networks: dict[int, _Network] = {}
        self._optimizers: list[tuple[Optimizer, dict[str, Any] | None]] = []
        self._handles: list[Any] = []
        self._trained: set[int] = set()
        self._private: Any = None

    def __enter__(self) -> "Watch":
        self._safely(self._start)
        return self

    def _start(self) -> None:
        if self._given is not None:
            self._follow(self._given)
        else:
            self._safely(self._find_all)
        self._handles += [
            register_optimizer_step_pre_hook(lambda optimizer, *_: self._safely(self._begins, optimizer)),
            register_optimizer_step_post_hook(lambda optimizer, *_: self._safely(self._ends, optimizer)),
        ]
        _listen_for_optimizers()
        _WATCHING.append(self)

    def __exit__(self, *_: object) -> None:
        with suppress(ValueError):
            _WATCHING.remove(self)
        for handle in self._handles:
            self._safely(handle.remove)

    def built(self, optimizer: Optimizer) -> None:
        """An optimizer was built, so its network is there."""
        if self._given is None and self._is_ours(optimizer):
            self._safely(self._find, optimizer)

    def _safely(self, look: Callable[..., None], *given: Any) -> None:
        """Nothing that goes wrong here may reach the training."""
        try:
            look(*given)
        except Exception as error:
            self._tell(f"its training could not be watched ({in_one_line(error)})")

    def _tell(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def _is_ours(self, optimizer: Optimizer) -> bool:
        if self._given is None:
            return self._thread in (None, threading.get_ident())
        own = {id(one) for one in self._given.parameters()}
        return any(id(one) in own for one in _parameters(optimizer))

    def _find(self, optimizer: Optimizer) -> None:
        """All networks that hold what the optimizer trains."""
        trained = {id(one) for one in _parameters(optimizer)}
        for one in gc.get_objects():
            if not issubclass(type(one), nn.Module):
                continue
            with suppress(Exception):  # of somebody's own, perhaps half built
                if trained <= {id(weight) for weight in one.parameters()}:
                    self._follow(one)

    def _find_all(self) -> None:
        """The networks of optimizers that were there before."""
        for one in [one for one in gc.get_objects() if issubclass(type(one), Optimizer)]:
            self._safely(self._find, one)

    def _follow(self, module: nn.Module) -> None:
        if id(module) in self._networks:
            return
        network = self._networks[id(module)] = _Network(module)

        def look(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any], made: Any) -> None:
            if torch.compiler.is_compiling() or not torch.is_grad_enabled():
                return
            self._safely(network.passed, [*given, *named.values()], made)

        self._handles.append(module.register_forward_hook(_Look(look), with_kwargs=True))

    def _begins(self, optimizer: Optimizer) -> None:
        if not self._is_ours(optimizer) or any(optimizer is one for one, _ in self._optimizers):
            return
        if not self._networks:
            self._find(optimizer)
        if self._loader is None:
            self._loader = _loader_in_use()
        self._optimizers.append((optimizer, None))
        self._trained = _names_of(optimizer)
        self._private = self._private or _wrapped_for_privacy(optimizer)
        self.carried = self.carried or any(optimizer.state.values())
        try:
            self._optimizers[-1] = optimizer, facts_of(optimizer)
        except UsageError as problem:
            self._tell(str(problem))

    def _ends(self, optimizer: Optimizer) -> None:
        first = next((facts for one, facts in self._optimizers if one is optimizer), None)
        if first is None:
            return
        # A scaler tells fused optimizers that gradients are not finite, and they then leave the step out.
        skipped = getattr(optimizer, "found_inf", None)
        counts = skipped is None or not bool(skipped)
        if counts:
            now = facts_of(optimizer)
            self.rates.append(now["lr"])
            if now | {"lr": 0} != first | {"lr": 0}:
                self._tell(
                    f"arguments of {now['name']} changed during the round; keep them, or the learning rate alone"
                )
            if _names_of(optimizer) != self._trained and len(self._optimizers) == 1:
                self._tell("other parameters were trained later in the round; train the same in every step")
        for network in self._networks.values():
            network.stepped(counts)

    def facts(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """The facts of a capture that were seen; what could not be told is in ``problems``.

        Args:
            names: of the arrays that were sent, which tell the client's network from one that holds it.
        """
        found: dict[str, Any] = {}
        network = self._network(set(names or ()))
        if len(self._optimizers) > 1:
            self._tell(f"{len(self._optimizers)} optimizers took steps; train the captured round with one")
        elif self._optimizers and self.rates:
            optimizer, first = self._optimizers[0]
            found |= {"optimizer": (first or {}) | {"lr": self.rates[0]}, "local_steps": len(self.rates)}
            found |= {"schedule": tuple(self.rates)} if len(set(self.rates)) > 1 else {}
            found |= {"state": "carried"} if self.carried else {}
            if network is not None:
                found["frozen"] = _frozen(network.module, optimizer)
        if network is not None:
            read = {"model": name_of(network.module), "image_shape": network.image_shape, "classes": network.classes}
            found |= {name: value for name, value in read.items() if value is not None}
        if self._private is not None:
            found |= self._of_privacy(self._private)
        return found | self._batches([] if network is None else network.steps)

    def _of_privacy(self, wrapper: Any) -> dict[str, Any]:
        """What an optimizer of Opacus declares, which clips and adds noise before the step of the one inside."""
        if type(wrapper).__name__ != "DPOptimizer":
            self._tell(f"how {type(wrapper).__name__} changes its steps is not known; give the defense")
            return {}
        settings = {"noise_multiplier": wrapper.noise_multiplier, "max_grad_norm": wrapper.max_grad_norm}
        expected = getattr(wrapper, "expected_batch_size", None)
        return {"defense": Declared(name="make_private", settings=settings)} | (
            {"expected_batch_size": expected} if expected else {}
        )

    def _network(self, names: set[str]) -> "_Network | None":
        """The client's: of those that something went through the one of these names, else the outermost."""
        used = [one for one in self._networks.values() if one.steps and any(one.steps)]
        named = [one for one in used if names and set(bare(one.module).state_dict()) == names] or used
        inside = {id(part) for one in named for part in one.module.modules() if part is not one.module}
        return next((one for one in named if id(one.module) not in inside), None)

    def _batches(self, steps: list[tuple[int, ...]]) -> dict[str, Any]:
        """Size of batches, and passes over how many examples, from the loader or else from what was seen."""
        steps = steps if all(steps) else []  # its network was found too late to tell
        each = sorted({len(one) for one in steps})
        if len(each) > 1:
            self._tell("its steps follow different numbers of batches; give batch_size and accumulate")
            return {}
        found: dict[str, Any] = {"accumulate": each[0]} if each and each[0] > 1 else {}
        sizes, loader = [size for one in steps for size in one], self._loader
        plain = {} if loader is None or loader.batch_size is None else {"batch_size": loader.batch_size}
        return found | (_of_loader(loader, len(sizes or self.rates)) or _of_sizes(sizes, self._tell) or plain)


def _of_loader(loader: "_Loader | None", batches: int) -> dict[str, Any]:
    if loader is None or loader.batch_size is None or loader.examples is None:
        return {}
    size = min(loader.batch_size, loader.examples)
    found: dict[str, Any] = {"examples": loader.examples, "batch_size": size}
    found |= {"drop_last": True} if loader.drop_last else {}
    each = loader.examples // size if loader.drop_last else -(-loader.examples // size)
    if batches and each and batches % each == 0:
        found |= {"epochs": batches // each} | ({"order": loader.order} if batches > each else {})
    return found


def _of_sizes(sizes: list[int], tell: Callable[[str], None]) -> dict[str, Any]:
    if not sizes:
        return {}
    size, smaller = max(sizes), [place for place, one in enumerate(sizes) if one < max(sizes)]
    if not smaller:
        return {"batch_size": size}
    each = smaller[0] + 1
    if len(sizes) % each or sizes != sizes[:each] * (len(sizes) // each):
        tell(f"its batches are of different sizes, such as {size} and {sizes[smaller[0]]}; give batch_size, and "
             "expected_batch_size where a sum was divided by that")  # fmt: skip
        return {}
    return {"batch_size": size, "examples": sum(sizes[:each]), "epochs": len(sizes) // each}


@dataclass
class _Loader:
    batch_size: int | None
    drop_last: bool
    examples: int | None
    order: str


def _facts_of_loader(loader: Any) -> _Loader:
    """Of a loader like torch's, which may be without a length."""
    batches = getattr(loader, "batch_sampler", None)
    return _loader_of(getattr(loader, "dataset", None), batches if batches is not None else loader)


def _loader_of(dataset: Any, batches: Any) -> _Loader:
    sampler, count = getattr(batches, "sampler", None), None
    with suppress(Exception):
        count = len(dataset) if sampler is None else len(sampler)
    if sampler is not None and (not isinstance(sampler, _IN_PASSES) or getattr(sampler, "replacement", False)):
        count = None
    order = "same" if isinstance(sampler, SequentialSampler) else "reshuffled"
    size = getattr(batches, "batch_size", None)
    return _Loader(size, bool(getattr(batches, "drop_last", False)), count, order)


def _loader_in_use() -> _Loader | None:
    """That whose batch is being trained on: the one of torch's loaders which is under way, if it is one alone."""
    found = [
        one for one in gc.get_objects()
        if issubclass(type(one), _BaseDataLoaderIter) and one._num_yielded
    ]  # fmt: skip
    under_way = [one for one in found if one._num_yielded <= 1] or found
    if len(under_way) != 1 or not under_way[0]._auto_collation:
        return None
    return _loader_of(under_way[0]._dataset, under_way[0]._index_sampler)


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    return (one for group in optimizer.param_groups for one in group["params"])


def _names_of(optimizer: Optimizer) -> set[int]:
    """What is trained, by its identity."""
    return {id(one) for one in _parameters(optimizer) if one.requires_grad}


def _wrapped_for_privacy(optimizer: Optimizer) -> Any:
    """Opacus's optimizer around this one, out of the frames of its step; None where there is none."""
    frame = sys._getframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if getattr(owner, "original_optimizer", None) is optimizer and hasattr(owner, "noise_multiplier"):
            return owner
        frame = frame.f_back
    return None


def _frozen(network: nn.Module, optimizer: Optimizer) -> tuple[str, ...]:
    """Names of what the optimizer does not train."""
    trained = {id(one) for one in _parameters(optimizer) if one.requires_grad}
    return tuple(name for name, one in bare(network).named_parameters() if id(one) not in trained)


def bare(network: nn.Module) -> nn.Module:
    """A network without what libraries wrap around it, such as ``torch.compile``."""
    inner = next(network.children(), None)
    return network if inner is None or type(network).__name__ not in _WRAPPERS else bare(inner)


def name_of(network: nn.Module) -> str | None:
    """``module:Class()``, which builds a network without arguments; None of a class that does not take none."""
    kind = type(bare(network))
    module = kind.__module__
    if module == "__main__":
        module = Path(str(getattr(sys.modules["__main__"], "__file__", None) or "")).stem
    if not module or module.split(".")[0] == "torch" or "." in kind.__qualname__:
        return None
    try:
        inspect.signature(kind).bind()
    except (TypeError, ValueError):
        return None
    return f"{module}:{kind.__qualname__}()"


_WATCHING: list[Watch] = []
_MARK = "tells_watches"


def _listen_for_optimizers() -> None:
    """From now on every watch is told of optimizers that are built: torch has hooks for their steps alone."""
    original = Optimizer.__init__
    if hasattr(original, _MARK):
        return

    @wraps(original)
    def init(self: Optimizer, *given: Any, **named: Any) -> None:
        original(self, *given, **named)
        for watch in list(_WATCHING):
            watch.built(self)

    setattr(init, _MARK, True)
    Optimizer.__init__ = init  # type: ignore[method-assign]
