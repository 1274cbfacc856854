"""Is the declared defense on? What can be told from the updates alone, and from the truth, check by check."""

import math
from typing import Any

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor, nn

from harness.base.coding import ByChance, Coding
from harness.base.kinds import plural
from harness.base.randomness import Stream
from harness.experiment import CellSettings
from harness.federation.taps import Hook
from harness.judging.declared import context_of, steps_of
from harness.judging.evidence import LEVEL, Check, Evidence, Outcome, bonferroni
from harness.judging.federation import CapturedClients
from harness.judging.noise_checks import ROUNDING, apart_as_noise, crowded, noise_checks, tailless
from harness.models.batch_norm import STATISTICS

# Checks that need no statistics: what has to be zero, to lie on a grid, or not to be sent at all.

LEFT_OUT = "coordinates are left out"
ON_GRID = "values lie on the declared grid"
BUFFERS = "buffers carry no data"
BARE = "no array leaves bare"

# A grid of fewer steps of the floats than this is not told from none, nor one that so few numbers show.
_FINEST = 16
# Of a number: what single precision may have lost of it.
_SINGLE = 1e-6
#: Of a test, what tells that noise is there, and not only that nothing shows that it is off.
SURE = 0.01
BY_TRUTH = "the truth tells, or keep them at the client"
# A share of numbers that rounding moves, below which their floats are too coarse to see it.
_SEEN = 0.5


def left_out(evidence: Evidence) -> Check | None:
    """Return whether no more coordinates were sent than declared; None where none is to be left out."""
    if not evidence.defense.sparse_at(evidence.settings.tap):
        return None
    sent, total = int((evidence.sent != 0).sum(1).max()), evidence.sent.shape[1]
    most = evidence.most_sent
    said = f"a client sent at most {sent} of {total} coordinates ({sent / total:.1%})"
    if most is None:
        return Check(LEFT_OUT, "cannot tell", f"{said}; how many it may send is not declared")
    said = f"{said}, declared are {most} ({most / total:.1%})"
    return Check(LEFT_OUT, "holds" if sent <= most else _sent_more(evidence, most), said)


def _sent_more(evidence: Evidence, most: int) -> Outcome:
    """Return what more coordinates than declared say: nothing against a client that keeps those above a threshold, if
    the smallest that it sent are alike. Where all that it sent are alike, as behind a cut, how many tied is lost; a
    tenth more than declared is not of ties."""
    chosen = evidence.defense.chosen_at(evidence.settings.tap, evidence.layout)
    if chosen is None or chosen.choice != "largest":
        return "violated"
    sizes = evidence.sent.abs().double()
    least = sizes.where(sizes > 0, math.inf).amin(1, keepdim=True)
    above = (sizes > least + 2 * evidence.captured.grain.double().reshape(-1, 1)).sum(1)
    if int(above.max()) >= most or int((sizes > 0).sum(1).max()) > 1.1 * most:
        return "violated"
    return "holds" if bool((above > 0).all()) else "cannot tell"


def on_grid(evidence: Evidence) -> Check | None:
    """Return whether every value is a multiple of the declared step, as integers of a secure sum are; None without a
    grid."""
    settings = evidence.settings
    step = evidence.defense.grid_of(settings.tap, context_of(evidence.captured, settings), steps_of(settings))
    if step is None:
        return _of_few_values(evidence)
    grain = float(evidence.captured.grain.max())
    if step < _FINEST * grain:
        return Check(ON_GRID, "cannot tell", f"its steps of {step:.3g} are too fine for the floats of the capture")
    steps = evidence.sent.double() / step
    off = float(((steps - steps.round()).abs() * step).max())
    said = f"values are up to {off:.2g} off a grid of {step:.3g}"
    return Check(ON_GRID, "holds" if off <= 2 * grain else "violated", said)


def _of_few_values(evidence: Evidence) -> Check | None:
    """Return whether no tensor, or block of one, holds more different numbers than the declared rounding leaves; None
    where it leaves any."""
    tap, adaptive = evidence.settings.tap, evidence.settings.update_reading.adaptive
    most, coding = evidence.defense.most_values_at(tap), evidence.defense.coding_at(tap)
    if adaptive is not None and not evidence.defense.changes_messages():
        return None
    if most is None:
        of_kind = {"float16": _of_floats, "bfloat16": _of_floats, "adaquant": _of_ranges}
        check = None if coding is None or evidence.noise is not None else of_kind.get(coding.kind)
        return None if check is None or coding is None else check(evidence, coding)
    block, counts, coarse = None if coding is None else coding.block, dict[str, int](), False
    for name, values in zip(evidence.layout.names, evidence.tensors(), strict=True):
        grain = 2 * evidence.captured.grain.double()[:, None]
        for part in values.split(block or values.shape[1], 1):
            ordered = part.sort(1).values
            # The floats of the capture may not tell all steps apart, and then fewer are counted.
            coarse |= bool(((ordered[:, -1:] - ordered[:, :1]) / most < _FINEST * grain).any())
            counts[name] = max(counts.get(name, 0), 1 + int((ordered.diff(dim=1) > grain).sum(1).max()))
    name = max(counts, key=lambda one: counts[one])
    where = name if block is None else f"{block} numbers of {name}"
    said = f"a client's {where} hold{'s' if block is None else ''} {counts[name]} different values"
    said = f"{said}, the declared rounding leaves at most {most}"
    if counts[name] > most:
        return _unless_weights(evidence, Check(ON_GRID, "violated", f"{said}: it is off, finer, or not by the tensor"))
    if coarse or all(min(size, block or size) <= most for size in evidence.layout.sizes):
        return Check(ON_GRID, "cannot tell", f"{said}, and without it there may be as few")
    # Steps of Adam have few sizes by themselves.
    if coding is not None and not (isinstance(coding, ByChance) or evidence.captured.sums):
        moved = _moved_again(evidence, coding)
        said += f", but rounding the update again moves {moved:.1%} of its numbers" if moved else ""
        return Check(ON_GRID, "cannot tell" if moved else "holds", said)
    return Check(ON_GRID, "holds", said)


def _moved_again(evidence: Evidence, coding: Coding, drawn: bool = False) -> float:
    """The largest share of a client's numbers that rounding them again moves by more than floats lose.

    ``drawn``: of numbers that are drawn between the least and the largest of each tensor in their place.
    """
    sizes, (update, grain), random = evidence.layout.sizes, _update(evidence), Stream("rounded again")
    if drawn:
        ends = [(one, *one.aminmax(dim=1, keepdim=True)) for one in update.split(sizes, 1)]
        update = torch.cat([low + (high - low) * random.uniform(one.shape) for one, low, high in ends], 1)
    return float(((update - coding.of(update, sizes)).abs() > grain).double().mean(1).max())


def _update(evidence: Evidence) -> tuple[Tensor, Tensor]:
    """Return what was sent (V, P) in its own unit, and what the floats that it was read from may have lost of each
    number."""
    reading = evidence.settings.update_reading
    times = reading.rate * reading.steps
    update = evidence.sent.double() * -times
    return update, 2 * evidence.captured.grain.double()[:, None] * times + _SINGLE * update.abs()


def _of_ranges(evidence: Evidence, coding: Coding) -> Check:
    """Return whether numbers lie on steps that follow from the least and the largest of each tensor."""
    if (seen := _moved_again(evidence, coding, drawn=True)) < _SEEN:
        return Check(ON_GRID, "cannot tell", f"steps of {coding.kind} are too fine for the floats of the capture")
    if not (moved := _moved_again(evidence, coding)):
        return Check(ON_GRID, "holds", f"rounding the update again by {coding.kind} moves none of its numbers")
    said = (
        f"rounding the update again by {coding.kind} moves {moved:.1%} of a client's numbers, of any others {seen:.1%}"
    )
    return _unless_weights(evidence, Check(ON_GRID, "violated", f"{said}: the rounding is off, or finer"))


def _of_floats(evidence: Evidence, coding: Coding) -> Check:
    """Return whether every number is one of the coarser floats that are declared.

    Of numbers that are not rounded, as many fit by chance as the floats of the capture are coarse.
    """
    kind, (update, grain) = coding.kind, _update(evidence)
    step = torch.ldexp(torch.full_like(update, torch.finfo(getattr(torch, kind)).eps), update.frexp().exponent - 1)
    seen = step > _FINEST * grain
    if int(seen.sum(1).min()) < _FINEST:
        return Check(ON_GRID, "cannot tell", f"steps of {kind} are too fine for the floats of the capture")
    off = ((update - coding.of(update, evidence.layout.sizes)).abs() > grain) & seen
    share = float((off.sum(1) / seen.sum(1)).max())
    if not share:
        return Check(ON_GRID, "holds", f"all numbers of an update whose steps are seen are numbers of {kind}")
    said = f"{share:.1%} of a client's numbers whose steps are seen are none of {kind}: the rounding is off, or finer"
    return _unless_weights(evidence, Check(ON_GRID, "violated", said))


def _unless_weights(evidence: Evidence, check: Check) -> Check:
    """The check that cannot tell where the weights lie on the grid, and not their change: they were sent rounded."""
    reading, tap = evidence.settings.update_reading, evidence.settings.tap
    coding, weights = evidence.defense.coding_at(tap), evidence.captured.before.double()
    after = weights - evidence.captured.target.double() * reading.rate * reading.steps
    if coding is None or isinstance(coding, ByChance) or after.shape != weights.shape:
        return check
    rounded = coding.of(after, evidence.captured.layout.sizes)
    grain = evidence.captured.grain.double()[:, None] * reading.rate * reading.steps
    if bool(((rounded - after).abs() > 2 * grain + _SINGLE * after.abs()).any()):
        return check
    return Check(ON_GRID, "cannot tell", f"{check.detail}; the weights after it are rounded so, and not their change")


def buffers(evidence: Evidence) -> Check | None:
    """Return whether statistics of the data travel beside what is defended; None where the network has none."""
    changed = evidence.captured.moved_buffers
    if evidence.captured.foreign or not any(one.is_floating_point() for _, one in evidence.module.named_buffers()):
        return None
    if not changed:
        return Check(BUFFERS, "holds", "none was sent, or all as they were")
    if covered := _covered(evidence):
        return covered
    first, *others = changed
    rest = f" and {len(others)} more" if others else ""
    fixed = next((name for name in changed if name.rpartition(".")[2] not in STATISTICS), None)
    if fixed is not None:
        return Check(
            BUFFERS, "violated", f"{fixed}{rest} came back changed, which the network does not train, and no clip and "
            "noise that are declared are on it; correct model or frozen, or the training",
        )  # fmt: skip
    return Check(
        BUFFERS, "violated", f"{first}{rest} came back changed: running statistics tell each batch's mean and "
        "variance, and no defense of the weights is on them; keep them at the client",
    )  # fmt: skip


def bare(evidence: Evidence) -> Check | None:
    """Return whether clip and noise of an update are declared to pass arrays over, and whether counts came back as
    counts."""
    clipping, counted = evidence.clipping, evidence.captured.counted
    if evidence.noise is None or clipping is None or clipping.unit != "update" or not (evidence.bare or counted):
        return None
    if evidence.bare:
        first, *others = sorted(evidence.bare)
        return Check(
            BARE, "violated", f"{first}{f' and {len(others)} more' if others else ''} left without clip and noise, as "
            f"{evidence.settings.defense} leaves arrays without a dimension: nothing is proven; give it the shape (1,)",
        )  # fmt: skip
    record, (first, *_) = evidence.captured.record, counted
    batches = record.local_steps * record.accumulate
    if any(bool((one != batches).any()) for one in counted.values()):
        said = f"{first} moved by other numbers than the {batches} batches: noise that is cut to whole numbers is less"
        return Check(BARE, "cannot tell", said)
    said = f"{first} counts batches and left without noise: what is proven is of clients that take as many steps"
    return Check(BARE, "holds", said)


def _covered(evidence: Evidence) -> Check | None:
    """Return whether the declared clip and noise are on what was sent beside the weights too; None where they are not.

    A buffer without noise moves less than noise does, or as no noise does. One that moves by more than clip and noise
    let it is not clipped. What moves by more than noise alone may have none. Where nothing is declared at the client,
    or no noise, buffers lack nothing that weights have. Of other laws, or of an unknown level, nothing is seen.
    """
    level, bound, defense = evidence.level, evidence.bound, evidence.defense
    changed = "they came back changed"
    if not any(defense.acts_at(hook) for hook in (Hook.CLIENT_STEP, Hook.CLIENT_MESSAGE, Hook.SUM_SECURELY)):
        said = f"{changed}, and no defense is declared at the client: weights leave it as they are too"
        return Check(BUFFERS, "cannot tell", said)
    if evidence.noise is None and bound is not None and _within(evidence, bound):
        said = f"{changed}, within the bound of the clip, and no noise is declared at the client"
        return Check(BUFFERS, "cannot tell", said)
    # Noise of single examples is added before there is anything to send.
    clipping, within = evidence.clipping, defense.acts_at(Hook.CLIENT_STEP)
    if evidence.noise is None or (within if clipping is None else clipping.unit != "update"):
        return None
    if not level:
        said = f"{changed}, and whether noise is on them is not seen: it is no Gaussian of one known level"
        return Check(BUFFERS, "cannot tell", said)
    moved = [one / level for one in evidence.captured.moved_buffers.values()]
    parts, grain = [*moved, torch.cat(moved, 1)], evidence.captured.grain.double().numpy() / level
    norms, sizes = np.stack([one.norm(dim=1).numpy() for one in parts], 1), np.array([one.shape[1] for one in parts])
    rounding = grain[:, None] * sizes**0.5
    noise = np.clip(norms - rounding, 0, None)
    beyond = np.zeros_like(norms) if bound is None else np.clip(noise - bound / level, 0, None)
    tests = [chi2.cdf((norms + rounding) ** 2, sizes), chi2.sf(beyond**2, sizes)]
    tests += [np.stack([one(part, grain) for part in parts], 1) for one in (crowded, tailless)]
    tests += [np.stack([apart_as_noise(part, grain.max()) for part in parts], 1)]
    p_value = min(1.0, len(tests) * min(bonferroni(one) for one in tests if one.size))
    if p_value < LEVEL:
        return None
    same = "clip and noise" if clipping else "noise"
    said = f"{changed}, under the same {same} of deviation {level * evidence.unit:.3g}"
    if min(p_value, bonferroni(chi2.sf(noise**2, sizes))) >= SURE:
        return Check(BUFFERS, "holds", said, p_value)
    said = f"{next(iter(evidence.captured.moved_buffers))} and others that came back changed may lack the noise of the"
    said = f"{said} weights: of deviation {level * evidence.unit:.3g}, it is not seen in how they moved"
    return Check(BUFFERS, "cannot tell", f"{said}; {BY_TRUTH}", p_value)


def _within(evidence: Evidence, bound: float) -> bool:
    """Return whether a clip of updates may have been on the buffers too."""
    clipping, moved = evidence.clipping, list(evidence.captured.moved_buffers.values())
    if clipping is None or clipping.unit != "update":
        return False
    parts = moved if clipping.grouping == "layer" else [torch.cat([evidence.sent.double(), *moved], 1)]
    most = bound * (1 + ROUNDING)
    return all(bool((part.norm(dim=1).numpy() <= most + evidence.rounding(part.shape[1])).all()) for part in parts)


def checks_of(captured: CapturedClients, settings: CellSettings) -> list[Check]:
    """All checks of the defense that ``settings`` declare."""
    evidence = Evidence(captured, settings)
    place = left_out(evidence)
    # Zeros in the place of coordinates have no noise, unless they were filled again behind it.
    filled = place is None or evidence.most_sent is None
    noise = [*noise_checks(evidence), on_grid(evidence)] if filled else []
    return [check for check in (place, *noise, bare(evidence), buffers(evidence)) if check is not None]


# --------------------------------------------------------------------------------------
# Is the loss the declared multiple of the mean cross-entropy? What the bias of the last layer tells of it.
#
# At the bias that is added to logits, cross-entropy has the gradient p - y: probabilities less a target, which both add
# up to 1. So the entries of a mean of such gradients add up to 0, and their sizes to 2 at most, whatever the data are.
# An entry is below 0 only where an example has its label.


NAME = "the loss is the declared one"
# Of the sizes' sum: what half precision in a client leaves.
_UNLIKE = 0.05
_MOST = 2.0


def fits_loss(evidence: Evidence) -> Check | None:
    """Return whether what was sent without a defense can be of the declared loss; None where that cannot be seen."""
    captured = evidence.captured
    if evidence.settings.defense != "none" or captured.not_known or captured.foreign or not captured.sums:
        return None
    name = bias_of_logits(evidence.module, captured.record.shape, captured.record.classes)
    if name not in evidence.layout.names:
        return None
    values = evidence.tensors()[evidence.layout.names.index(name)]
    rounding = torch.from_numpy(evidence.rounding(1)) * values.shape[1]
    sizes = values.abs().sum(1)
    apart = ((values.sum(1).abs() - rounding).clamp_min(0) / sizes.clamp_min(1e-30)).max()
    times = ((sizes - rounding) / _MOST).max()
    # Without those of so many labels no entry is below 0.
    below = -values.clamp_max(0).sort(1).values[:, evidence.most_examples :].sum(1)
    if float(apart) > _UNLIKE:
        said = f"the entries of {name} add up to {float(apart):.2g} of their sizes, those of cross-entropy to 0"
        fix = "another loss, weight decay or a defense that is not declared"
        return Check(NAME, "violated", f"{said}: {fix}")
    if bool((below - rounding > _UNLIKE * sizes).any()):
        said = f"more entries of {name} are below 0 than {plural(evidence.most_examples, 'example')} would have labels"
        fix = "an update is after less before, and a gradient goes uphill; or there are more examples than declared"
        return Check(NAME, "violated", f"{said}: {fix}")
    if float(times) > 1 + _UNLIKE:
        said = f"the entries of {name} are at least {float(times):.3g} times as large as those of the declared loss"
        optimizer = captured.record.local_optimizer
        state = ", or state if its optimizer remembers earlier rounds" if optimizer and optimizer.is_stateful else ""
        return Check(NAME, "violated", f"{said}: give loss_scale where it is a sum, or correct learning_rate{state}")
    return Check(NAME, "holds", f"the entries of {name} are as the declared multiple of cross-entropy has them")


def bias_of_logits(module: nn.Module, image_shape: tuple[int, ...], classes: int) -> str | None:
    """The name of the bias that is added to logits and to nothing else; None where there is none such."""
    made: dict[str, list[Any]] = {}
    layers = {name: layer for name, layer in module.named_modules() if type(layer) is nn.Linear}
    hooks = [
        layer.register_forward_hook(lambda _, __, out, name=name: made.setdefault(name, []).append(out))
        for name, layer in layers.items()
    ]  # fmt: skip
    try:
        with torch.no_grad():
            output = module.eval()(torch.zeros(1, *image_shape))
    finally:
        for hook in hooks:
            hook.remove()
    # Others, such as logits with features or one number, are no logits: attacks refuse them.
    if not isinstance(output, torch.Tensor) or output.shape != (1, classes):
        return None
    shared = [id(one) for _, one in module.named_parameters(remove_duplicate=False)]
    for name, outputs in made.items():
        alike = len(outputs) == 1 and outputs[0].shape == output.shape
        last = alike and any(torch.equal(one, output) for one in (outputs[0], outputs[0].log_softmax(-1)))
        bias = layers[name].bias
        if last and bias is not None and shared.count(id(bias)) == 1:
            return f"{name}.bias" if name else "bias"
    return None
