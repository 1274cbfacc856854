"""Watch over a client's local training while it runs: its network, its optimizer's steps, its loader.

Hooks of torch look on; no random number is drawn and no value changes. Sources: torch 2's
``register_optimizer_step_pre_hook`` and ``_post_hook``, ``Module.register_forward_hook``, ``Tensor.register_hook``, and
``GradScaler``, which leaves out the steps of gradients that are not finite.
"""

import gc
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils import checkpoint
from torch.utils.data.dataloader import _BaseDataLoaderIter

from harness.base.errors import in_one_line
from harness.base.layers import digest_of_layers, drops_out, drops_within
from harness.base.normalising import BYTES, USUAL, name_of_scaling
from harness.capture.losses import FIX, Clips, facts_of_losses, kind_of, seen_of, weights_beside
from harness.capture.optimizers import Loader, Steps, batches_of, loader_of, parameters_of
from harness.capture.passes import (
    BEYOND,
    NEARLY,
    Look,
    Network,
    Pass,
    bare,
    changed_reply,
    hide_looks_from_scripts,
    is_wrapper,
    marks_of_weights,
    moved,
    scaling_in_use,
    still_buffers,
)
from harness.judging.framework_defenses import Declared


def random_said(layer: str) -> str:
    """Say why a network with a random layer is not captured."""
    return (
        f"its layer {layer!r} drops out units, and nobody learns which; set its p to 0, or call its eval(), in the "
        "captured round"
    )


class Watch:
    """Context that watches one client's local training.

    Args:
        network: the client's; None where it is built inside, and then only this thread is watched.
        loader: of its batches; None where the one in use is to be found.
        everywhere: watch all threads.
    """

    def __init__(self, network: nn.Module | None = None, loader: Any = None, everywhere: bool = False) -> None:
        self.problems: list[str] = []
        self.unsure: dict[str, str] = {}
        # By the facts of which one has to be given.
        self.unlike: dict[tuple[str, ...], str] = {}
        self.told: list[str] = []
        self.scaled: str | None = None
        self._given = network
        self._asked = None if loader is None else (id(getattr(loader, "batch_sampler", None)), _facts_of_loader(loader))
        # By the sampler of their batches, which is kept so that it stays this one's name.
        self._drawn: dict[int, Loader] = {}
        self._samplers: list[Any] = []
        self._early: list[Loader] = []
        self._thread = None if everywhere else threading.get_ident()
        self._networks: dict[int, Network] = {}
        self._adding = threading.Lock()
        self._steps = Steps(self._tell, self.unlike)
        self._handles: list[Any] = []
        # Of one step.
        self._looks: list[Any] = []
        self._private: Any = None
        # Over how many batches a private optimizer divided each step, beside the size that it expects.
        self._shares = set[int]()
        self._clips = Clips()
        self._penalised = self._by_itself = False

    def __enter__(self) -> "Watch":
        self._safely(self._start)
        return self

    def _start(self) -> None:
        # Before the search: another thread may build its optimizer meanwhile.
        self._handles += [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(lambda optimizer, *_: self._safely(self._ends, optimizer)),
        ]
        _listen(Optimizer, "__init__", Watch.built)
        _listen(_BaseDataLoaderIter, "__next__", Watch.drawn)
        _listen_to_gradients()
        _listen(checkpoint._checkpoint_hook, "__init__", Watch.computes_again)
        hide_looks_from_scripts()
        _WATCHING.append(self)
        if self._given is not None:
            self._follow(self._given)
            self._safely(self._find_wrappers)
        else:
            self._safely(self._find_all)

    def __exit__(self, *_: object) -> None:
        with suppress(ValueError):
            _WATCHING.remove(self)
        for network in self._networks.values():
            if network.steps and self._is_given(network.module):
                with suppress(Exception):
                    network.after = moved(marks_of_weights(network.module), network.marks)
        for handle in [*self._handles, *self._looks]:
            self._safely(handle.remove)

    def built(self, optimizer: Optimizer) -> None:
        """An optimizer was built, so its network is there."""
        if self._given is None and self._is_ours(optimizer):
            self._safely(self._find, optimizer)

    def drawn(self, batches: _BaseDataLoaderIter) -> None:
        """One of torch's loaders gave a batch."""
        if self._given is not None or self._thread in (None, threading.get_ident()):
            self._safely(self._draw, batches)

    def went_back(self, losses: Any, weights: Any = None) -> None:
        """The gradient of losses was made; ``weights``: by which alone, and left nowhere."""
        if self._given is not None or self._thread in (None, threading.get_ident()):
            self._safely(self._look_beside, losses, weights)

    def computes_again(self, _: object) -> None:
        """A checkpoint saves memory in a pass."""
        for network in self._networks.values():
            network.saves_memory()

    def _look_beside(self, losses: Any, weights: Any) -> None:
        own = {id(one) for network in self._networks.values() for one in network.module.parameters()}
        if weights is not None and not own & set(map(id, _tensors(weights))):
            return
        found = [weights_beside(one) for one in _tensors(losses)]
        beside = {one for some, _ in found for one in some}
        outputs = {one for _, some in found for one in some}
        if len({one for one, _ in outputs}) < len(outputs):
            self._tell("its loss counts several outputs of its network; capture a round with the loss of its logits")
        counts, of_output = bool(own & beside), bool(outputs)
        self._penalised = self._penalised or (counts and of_output)
        # By itself, a loss of weights is part of a step where the network's own came before: nothing was dropped since.
        self._by_itself = counts and not of_output

    def _draw(self, batches: _BaseDataLoaderIter) -> None:
        sampler = batches._index_sampler
        if id(sampler) not in self._drawn:
            self._samplers.append(sampler)
            self._drawn[id(sampler)] = loader_of(batches._dataset, sampler)
        places = self._drawn[id(sampler)].places
        if places is not None:
            places.append(batches._num_yielded)

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
        return any(id(one) in own for one in parameters_of(optimizer))

    def _find(self, optimizer: Optimizer) -> None:
        """All networks that hold what the optimizer trains; of one that is half built in another thread, all there are.

        The first optimizer of a process is built slowly, since torch loads its compiler for it.
        """
        trained = {id(one) for one in parameters_of(optimizer)}
        for one in gc.get_objects():
            if not issubclass(type(one), nn.Module):
                continue
            with suppress(Exception):  # of somebody's own, perhaps half built
                if trained <= {id(weight) for weight in one.parameters()}:
                    self._follow(one)

    def _find_wrappers(self) -> None:
        """Find what was wrapped around the given network before, which the loop may call in its place."""
        for one in gc.get_objects():
            if is_wrapper(one) and self._is_given(one):
                self._follow(one)

    def _is_given(self, module: nn.Module) -> bool:
        """Return whether this is the given network, perhaps wrapped."""
        return self._given is not None and bare(module) is bare(self._given)

    def _find_all(self) -> None:
        """The networks of optimizers that were there before."""
        for one in [one for one in gc.get_objects() if issubclass(type(one), Optimizer)]:
            self._safely(self._find, one)

    def _follow(self, module: nn.Module) -> None:
        with self._adding:
            if id(module) in self._networks:
                return
            network = self._networks[id(module)] = Network(module)
        self._safely(lambda: network.still.update(still_buffers(module)))
        if self._is_given(module):
            with suppress(Exception):
                network.marks = marks_of_weights(module)

        def look(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any], made: Any) -> None:
            if not _trains():
                return
            self._safely(network.passed, [*given, *named.values()], made)
            # Also layers that are only now trained.
            self._safely(self._follow_weights, module)

        def begin(_: nn.Module, __: tuple[Any, ...]) -> None:
            if _trains():
                self._safely(network.begins)

        self._handles.append(module.register_forward_pre_hook(Look(begin)))
        self._handles.append(module.register_forward_hook(Look(look), with_kwargs=True))
        self._safely(self._follow_weights, module)

    def _follow_weights(self, module: nn.Module) -> None:
        self._handles += self._clips.follow(module.parameters())

    def _before(self, optimizer: Optimizer, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """A step begins; what it is called with from now on, or None where that stays as it is."""
        self._safely(self._begins, optimizer)
        hooks: Any = optimizer._optimizer_step_post_hooks
        if hooks:
            # Its own come before ours, and may change weights.
            look = optimizer.register_step_post_hook(lambda *_: self._safely(self._leaves, optimizer))
            hooks.move_to_end(look.id, last=False)
            self._looks.append(look)
        closure = named.get("closure", given[1] if len(given) > 1 else None)
        if closure is None and optimizer._optimizer_step_pre_hooks:
            # Hooks of its own, which may change gradients, come before the step and behind this one.
            look = optimizer.register_step_pre_hook(lambda *_: self._safely(self._look_at_gradients, optimizer))
            self._looks.append(look)
            return None
        if closure is None:
            self._safely(self._look_at_gradients, optimizer)
            return None

        # Gradients are made within the step, as Lightning does it.
        @wraps(closure)
        def seen(*more: Any) -> Any:
            made = closure(*more)
            self._safely(self._look_at_gradients, optimizer)
            return made

        return ((*given[:1], seen, *given[2:]), named) if "closure" not in named else (given, named | {"closure": seen})

    def _look_at_gradients(self, optimizer: Optimizer) -> None:
        """They are as the step takes them."""
        if not self._is_ours(optimizer):
            return
        added = self._clips.reached() & {id(one) for one in parameters_of(optimizer)}
        if any(network.left & added for network in self._networks.values()):
            self._tell(
                "gradients were there before the first batch of a step, of an earlier batch or of a penalty with a "
                "backward() of its own; call the optimizer's zero_grad() there, and leave such a penalty out"
            )
        came_back = any(one.back for network in self._networks.values() for one in network.waiting)
        self._penalised, self._by_itself = self._penalised or (self._by_itself and came_back), False
        self._steps.look(optimizer)
        self._clips.stepped(parameters_of(optimizer), _scale())

    def _begins(self, optimizer: Optimizer) -> None:
        if not self._is_ours(optimizer) or self._steps.are_of(optimizer):
            return
        if not self._networks:
            self._find(optimizer)
        if self._steps.first is None:
            self._early = list(self._drawn.values())
        self._private = self._private or _wrapped_for_privacy(optimizer)
        if self._private is not None:
            self._shares.add(getattr(self._private, "accumulated_iterations", 1))
        self._steps.begin(optimizer)

    def _leaves(self, optimizer: Optimizer) -> None:
        """Weights are as a step left them."""
        for network in self._networks.values() if self._steps.are_of(optimizer) else ():
            with suppress(Exception):
                network.marks = marks_of_weights(network.module)

    def _ends(self, optimizer: Optimizer) -> None:
        while self._looks:
            self._looks.pop().remove()
        if not self._steps.are_of(optimizer):
            return
        # A scaler tells fused optimizers that gradients are not finite, and they then leave the step out.
        self._steps.leave(optimizer)
        skipped = getattr(optimizer, "found_inf", None)
        counts = skipped is None or not bool(skipped)
        if counts:
            for one in self._drawn.values():
                one.used = len(one.places or ())
            self._steps.end(optimizer)
            if not optimizer._optimizer_step_post_hooks:
                self._leaves(optimizer)
        scale = _scale() if counts else 1.0
        for network in self._networks.values():
            network.stepped(counts, scale)

    def facts(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """The facts of a capture that were seen; what could not be told is in ``problems``.

        In ``unsure`` stands what is taken for granted unless the fact is given, and in ``unlike`` why there is no
        capture unless it is.

        Args:
            names: of the arrays that were sent, which tell the client's network from one that holds it.
        """
        found: dict[str, Any] = {}
        network = self._network(set(names or ()))
        found |= self._steps.facts(None if network is None else bare(network.module))
        if network is not None:
            read = {"image_shape": network.image_shape, "classes": network.classes, "computed_in": network.coarse}
            found |= {name: value for name, value in read.items() if value is not None}
            found |= self._named(network)
            found |= {"format": 2, "data": "text"} if network.reads else {}
        if self._private is not None:
            found |= self._of_privacy(self._private)
        else:
            found |= self._clips.facts(self.unlike)
        if network is not None:
            self._look_within(network)
        steps = [()] * len(self._steps.rates) if network is None else network.steps
        # The batches may be the given loader's, else of all that are in use at the first step.
        loaders = self._early if self._asked is None else [self._drawn.get(self._asked[0], self._asked[1])]
        if self._private is not None and any(len(one) > 1 for one in steps):
            # It clips each example, whatever part of the batch it came in, such as those of BatchMemoryManager.
            steps, loaders = [(sum(one),) for one in steps], []
        found |= batches_of(steps, loaders, self._tell) if steps else {}
        if network is None and self._steps.first is not None and "batch_size" not in found:
            self.unlike["batch_size",] = (
                "its network was not seen at work: the loop calls parts of it, or a wrapper such as torch.compile's; "
                "call the network as a whole, and give the capture what the loop calls"
            )
        if not self._steps.rates and not self.problems:
            self._tell("no optimizer of torch took a step in it; train in the captured part, or give all facts")
        return found | self._of_losses(network)

    def _named(self, network: Network) -> dict[str, Any]:
        """The network's class with what was changed of it, and what tells whether the class builds it again."""
        name, module = name_of(network.module), bare(network.module)
        if name is not None and any(drops_out(one) or drops_within(one) for one in module.modules()):
            name += "+no_dropout"  # it is off, or told
        self._look_at_scale(network, name)
        if name is None:
            return {}
        scaled = "" if self.scaled is None else f"+{self.scaled}"
        return {"model": name + scaled, "layers": digest_of_layers(module)}

    def _look_at_scale(self, network: Network, name: str | None) -> None:
        """Note how the images of a network were scaled, if they are not in [0, 1]."""
        if network.least is None or network.most is None:
            return
        ends = [(float(least), float(most)) for least, most in zip(network.least, network.most, strict=True)]
        least, most = min(one for one, _ in ends), max(one for _, one in ends)
        if least >= -BEYOND and most <= 1 + BEYOND:
            return
        parts = {id(part) for one in self._networks.values() for part in one.module.modules()}
        found = scaling_in_use(ends, parts)
        self.scaled = None if found is None else name_of_scaling(*found)
        if self.scaled is None:
            near = least > -NEARLY and most < 1 + NEARLY
            clamp = "clamp them there (behind resizing or noise), or " if near else ""
            self.unlike["model",] = (
                f"what went into its network goes from {least:.3g} to {most:.3g}, and images are looked for in [0, 1]; "
                f"{clamp}give the model with mean and deviation of its scaling behind it, such as "
                f"{name or 'module:factory'}+{name_of_scaling(*(USUAL[0] if least < 0 or near else BYTES))}"
            )

    def _look_within(self, network: Network) -> None:
        """Note what a network does beside its function of weights and examples."""
        if network.random is not None:
            self._tell(random_said(network.random))
        elif all(one.drew for step in network.made for one in step):  # another thread would not do so in every pass
            self._tell("its network draws random numbers as it computes, and nobody learns which; turn that off")
        if network.mixes is not None:
            self._tell(
                f"its layer {network.mixes!r} normalises batches without running statistics, so that no example's "
                "logits are its own; let it track them"
            )
        first = [one for step in network.made[:1] for one in step]
        ways = [one.odd or (None if name_of(network.module) is None else one.returns) for one in first]
        odd = next((one for one in ways if one is not None), None)
        if odd is not None:
            self.unlike["model",] = (
                f"its network {odd}, and cannot be played so; give the model of a factory whose network computes the "
                "same without"
            )
        written = network.moved
        if written is not None and odd is None:
            self.told.append(f"its network changes its buffer {written!r} as it trains; attacks keep it as it was")
        if self._penalised:
            self.unlike["fedprox", "optimizer", "defense"] = (
                "its loss counts the weights themselves, as FedProx and penalties do, or what layers make of them; "
                "leave that out in the captured round, or give fedprox, or of a penalty on squared weights the "
                "optimizer with its weight_decay"
            )
        passes = [one for one in network.all if one.counts]
        steady = next((one.steady for one in passes if one.steady), None)
        if steady is not None:
            self.unlike["model",] = (
                f"its layer {steady!r} normalises as in eval(), and that of a new network does not; call its "
                "train(), or give a model whose factory calls its eval()"
            )
        others = [network.after, *(one.apart for one in passes)]
        if any(one is not None and bool(one) for one in others):
            self.unlike["defense",] = (
                "its weights were changed beside the optimizer's steps; leave that out in the captured round, or give "
                "the defense that does so"
            )

    def look_at_reply(self, sent: Mapping[str, Any], before: Iterable[str], kept: bool) -> None:
        """Look at what left the client's app, beside what it trained.

        Args:
            sent: arrays of its network after the training.
            before: names of those that it began with.
            kept: nothing that is declared changes them on their way.
        """
        network = self._network(set(sent))
        if network is None or self._steps.first is None:
            return
        named = dict(bare(network.module).named_parameters())
        still = self._steps.frozen(bare(network.module))
        unsent = [name for name in named if name not in sent and name not in still]
        if set(named) & set(sent) and unsent and (len(self._steps.rates) > 1 or not set(unsent) <= set(before)):
            self._tell(
                f"its weight {unsent[0]!r} was trained and not sent, and what it was in each step is known to nobody "
                "else; send all trained weights in the captured round"
            )
        changed = changed_reply(network, sent) if kept else None
        if changed is not None:
            self.unlike.setdefault(
                ("defense",),
                f"its weight {changed!r} was not sent as the last step left it; send it so in the captured round, or "
                "give the defense that changes it",
            )

    def of_steps(self, truth: Mapping[str, Any], names: Iterable[str]) -> Mapping[str, Any]:
        """Return those of the examples of all batches that made steps, where they can be told apart by their
        numbers."""
        network = self._network(set(names))
        every = [] if network is None else network.all
        count = len(truth["labels"]) if truth else 0
        # A loop may have left a batch out before its gradient was made.
        some = ([one for one in every if one.back], every)
        passes = next((ones for ones in some if sum(one.examples for one in ones) == count), [])
        if not passes:
            return truth
        kept = torch.tensor([one.counts for one in passes for _ in range(one.examples)], dtype=torch.bool)
        return {name: values[kept] for name, values in truth.items()}

    def _of_privacy(self, wrapper: Any) -> dict[str, Any]:
        """Return what an optimizer of Opacus declares, which clips and adds noise before the step of the one inside."""
        if type(wrapper).__name__ != "DPOptimizer":
            self._tell(f"how {type(wrapper).__name__} changes its steps is not known; give the defense")
            return {}
        if getattr(wrapper, "loss_reduction", "mean") != "mean":
            self._tell("its private optimizer does not divide by the batch; train with loss_reduction='mean'")
        settings = {"noise_multiplier": wrapper.noise_multiplier, "max_grad_norm": wrapper.max_grad_norm}
        if len(self._shares) > 1:
            self._tell("its private optimizer divides steps by different numbers of batches; add up as many in each")
        expected = (getattr(wrapper, "expected_batch_size", None) or 0) * max(self._shares, default=1)
        return {"defense": Declared(name="make_private", settings=settings)} | (
            {"expected_batch_size": expected} if expected else {}
        )

    def _network(self, names: set[str]) -> "Network | None":
        """The client's: of those that something went through the one of these names, else the outermost."""
        used = [one for one in self._networks.values() if one.steps and any(one.steps)]
        named = [one for one in used if names and set(bare(one.module).state_dict()) == names] or used
        inside = {id(part) for one in named for part in one.module.modules() if part is not one.module}
        return next((one for one in named if id(one.module) not in inside), None)

    def _of_losses(self, network: "Network | None") -> dict[str, Any]:
        """Return what the losses count; of the mean cross-entropy of all examples of a step nothing has to be said."""
        if not self._steps.rates:
            return {}
        steps = [] if network is None else network.made
        passes = [one for step in steps for one in step]
        multiples = [[one.multiple for one in step] for step in steps]
        if self._private is not None:  # which divides by what it expects, however many batches there are
            multiples = [[one.multiple] for one in passes]
        found = facts_of_losses(multiples, max([one.near for one in passes], default=0.0))
        if not seen_of(multiples):
            self.unsure = {"loss_scale": "its loss was not seen: taken as the mean cross-entropy of each batch"}
            added = "whether the batches of a step are added up is not seen: taken as a mean"
            self.unsure |= {"accumulate_sum": added} if len(passes) > len(multiples) else {}
        elif found is None:
            self.unlike["loss_scale",] = _unlike(passes)
        elif self._private is not None and "loss_scale" in found:
            self.unlike["loss_scale",] = (
                f"its loss is {found['loss_scale']:g} times the mean cross-entropy, which its private optimizer clips; "
                "capture a round with the mean"
            )
        return found or {}


def _unlike(passes: Sequence[Pass]) -> str:
    """Return why the losses of batches are not all of one multiple of their mean cross-entropy."""
    multiples = [one.multiple for one in passes if one.multiple]
    if not any(one != one for one in multiples):
        said = f"its losses are from {min(multiples):.4g} to {max(multiples):.4g} times the mean cross-entropy"
        return f"{said} of a batch; capture a round with reduction='mean', or with batches of one size"
    first = next((one.kept for one in passes if one.kept and one.multiple and one.multiple != one.multiple), None)
    if first is not None and not all(bool(one.isfinite().all()) for one in first):
        return "its loss became NaN or infinity: its training diverged; capture another round"
    kind = "not cross-entropy in every step" if first is None else kind_of(*first)
    return f"its loss is {kind}, which no attack plays; {FIX}"


def _facts_of_loader(loader: Any) -> Loader:
    """Return the facts of a loader like torch's, which may be without a length."""
    batches = getattr(loader, "batch_sampler", None)
    found = loader_of(getattr(loader, "dataset", None), batches if batches is not None else loader)
    found.places = None
    return found


def _trains() -> bool:
    """Return whether this pass is one of a training, and not of somebody who compiles or evaluates."""
    tracing = torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
    return torch.is_grad_enabled() and not tracing and not torch.compiler.is_compiling()


def _around() -> Iterator[Any]:
    """Objects whose methods led to an optimizer's step, innermost first, out of their frames."""
    frame = sys._getframe()
    while frame is not None:
        yield frame.f_locals.get("self")
        frame = frame.f_back


def _wrapped_for_privacy(optimizer: Optimizer) -> Any:
    """Opacus's optimizer around this one; None where there is none."""
    wrappers = (one for one in _around() if getattr(one, "original_optimizer", None) is optimizer)
    return next((one for one in wrappers if hasattr(one, "noise_multiplier")), None)


def _scale() -> float:
    """Return what a gradient scaler has multiplied losses by."""
    scalers = (one for one in _around() if hasattr(one, "get_scale") and hasattr(one, "unscale_"))
    return next((float(one.get_scale()) for one in scalers), 1.0)


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


def _tensors(given: Any) -> list[Tensor]:
    return [given] if isinstance(given, Tensor) else [one for one in given if isinstance(one, Tensor)]


def _listen_to_gradients() -> None:
    """Tell every watch of gradients from now on; ``Tensor.backward`` asks torch.autograd for them."""
    for name in ("backward", "grad"):
        original: Any = getattr(torch.autograd, name)
        if not hasattr(original, _MARK):
            setattr(torch.autograd, name, _told(original, name == "grad"))


def _told(original: Any, of_weights: bool) -> Any:
    @wraps(original)
    def function(*given: Any, **named: Any) -> Any:
        made = original(*given, **named)
        losses = given[0] if given else named.get("outputs" if of_weights else "tensors", ())
        weights = (given[1] if len(given) > 1 else named.get("inputs", ())) if of_weights else None
        for watch in list(_WATCHING):
            watch.went_back(losses, weights)
        return made

    setattr(function, _MARK, True)
    return function


def _listen(kind: type[Any], name: str, tell: Callable[[Watch, Any], None]) -> None:
    """Tell every watch from now on when this method of torch's was called: torch has no hooks for it."""
    original = getattr(kind, name)
    if hasattr(original, _MARK):
        return

    @wraps(original)
    def method(self: Any, *given: Any, **named: Any) -> Any:
        made = original(self, *given, **named)
        for watch in list(_WATCHING):
            tell(watch, self)
        return made

    setattr(method, _MARK, True)
    setattr(kind, name, method)
