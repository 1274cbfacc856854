"""The filters of Flower, FLIP, NVFlare and of papers: a function each, from arguments and facts to an answer.

Files are named with the version that was read; where tests also run the package, ``ran`` says so.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from harness.base.errors import UsageError
from harness.base.presence import down
from harness.claims import epsilons
from harness.claims.answers import (
    REQUIRED,
    Answer,
    Arguments,
    Facts,
    Filter,
    agree,
    flag,
    number,
    positive,
    share,
    whole,
)
from harness.claims.epsilons import Relation
from harness.claims.registry import KNOWN, METRICS, NUMPY, RAW, does_nothing, line_of, no_scalars, register

# Flower.


@register(
    "flower:LocalDpMod", "s1", source="flwr 1.42.0, clientapp/mod/localdp_mod.py", ran=True, aliases=("LocalDpMod",),
    since="1.14",
    does="clips the update to clipping_norm and adds Gaussian noise by the classical formula",
    claims="(epsilon, delta) for every reply",
    works="set sensitivity to twice clipping_norm, epsilon to 8 or less, and send no 0-d arrays",
    settings={"clipping_norm": REQUIRED, "sensitivity": REQUIRED, "epsilon": REQUIRED, "delta": REQUIRED},
)  # fmt: skip
def _local(arguments: Arguments, facts: Facts) -> Answer:
    if facts.older_than(KNOWN["flower:LocalDpMod"].since):
        claimed = positive(arguments, "epsilon")[0]
        return does_nothing(
            "before 1.14.0 noise is made and not used: the update is clipped alone", facts, claimed=claimed
        )
    return _classical(arguments, facts)


def _classical(arguments: Arguments, facts: Facts, prefix: str = "") -> Answer:
    """A clip, and noise by the classical formula, from arguments whose names have a prefix."""
    bound, sensitivity, epsilon = positive(
        arguments, f"{prefix}clipping_norm", f"{prefix}sensitivity", f"{prefix}epsilon"
    )
    delta = number(arguments, f"{prefix}delta", 0.0, 1.0)
    answer = Answer(notes=[METRICS, NUMPY, "every other view, and each example of the client, loses at most this"])
    no_scalars(answer, facts, "leave without clip, and in messages without noise")
    if facts.buffers == "int":
        answer.fails.append("integer arrays raise an error once the clip acts, and their noise is cut to whole numbers")
    deviation = epsilons.classical_deviation(sensitivity, epsilon, delta)
    limit = epsilons.classical_limit(2 * bound / sensitivity, delta)
    holds = f"up to epsilon {down(limit, 4)}" if limit > 0.05 else "at no useful epsilon"
    line = line_of("client", f"exact Gaussian; for replacing, the formula holds {holds}", facts.delta or delta,
                 claimed=epsilon, claimed_delta=delta)  # fmt: skip
    mus: dict[Relation, float] = {"replace": 2 * bound / deviation, "zero-out": bound / deviation}
    if epsilon > 1:
        answer.notes.append("the formula is proven for epsilon up to 1; beyond, the exact value decides")
    if sensitivity < 2 * bound:
        answer.notes.append(
            f"sensitivity {sensitivity:g} is below 2 clipping_norm = {2 * bound:g}, what replacing a client can change"
        )
    answer.gaussian(line, mus, facts)
    return answer


@register(
    "flip:local_dp", "s1", source="FLIP 362667fa, flip-utils/flip/flower/privacy.py",
    does="clips the update to dp-clipping-norm and adds Gaussian noise by the classical formula, if dp-enabled",
    claims="(epsilon, delta) for every reply, by the formula",
    works="set dp-sensitivity to twice dp-clipping-norm",
    aliases=("LocalDP",),
    settings={"dp_enabled": True, "dp_clipping_norm": 1.0, "dp_sensitivity": 1e-4, "dp_epsilon": 10.0,
              "dp_delta": 1e-5},
)  # fmt: skip
def _flip(arguments: Arguments, facts: Facts) -> Answer:
    if not flag(arguments, "dp_enabled"):
        return does_nothing("dp-enabled is false: the update leaves as it is", facts)
    return _classical(arguments, facts, "dp_")


_CENTRAL = {
    "strategy": None, "noise_multiplier": REQUIRED, "clipping_norm": REQUIRED, "num_sampled_clients": REQUIRED,
    "accountant": None,
}  # fmt: skip
_BY_ACCOUNTANT = (
    "no number without its optional accountant (flwr 1.42): epsilon by Renyi divergences, without samples, for adding "
    "or removing a client; recommended: a multiplier of 1 or more"
)
_ADAPTIVE = {
    "strategy": None, "noise_multiplier": REQUIRED, "num_sampled_clients": REQUIRED, "initial_clipping_norm": 0.1,
    "target_clipped_quantile": 0.5, "clip_norm_lr": 0.2, "clipped_count_stddev": None,
}  # fmt: skip
_AFTER = "noise is added after {}, whose state has read the raw updates"
_CHOOSES = "{} takes no mean of all: one client may move what it chooses by 2 clipping norms"
_TREES = "{} collects trees, which no clip bounds"
#: What is known of the strategies of flwr 1.42.0 (serverapp/strategy, server/strategy); empty: a plain mean.
_STRATEGIES = {
    **dict.fromkeys(("fedavg", "fedprox", "faulttolerantfedavg", "fedavgandroid"), ""),
    **dict.fromkeys(("fedadam", "fedyogi", "fedadagrad", "fedavgm", "fedopt"), _AFTER),
    **dict.fromkeys(("fedmedian", "fedtrimmedavg", "krum", "multikrum", "bulyan"), _CHOOSES),
    **dict.fromkeys(("fedxgbbagging", "fedxgbcyclic", "fedxgbnnavg"), _TREES),
    "qfedavg": "{} weighs clients by their loss, which is private and has no bound",
}  # fmt: skip


def _wrapped(answer: Answer, arguments: Arguments, facts: Facts) -> None:
    """Add to the answer what is known of the wrapped strategy. Noise goes by the sensitivity of a plain mean."""
    given = arguments["strategy"]
    if given is not None and not isinstance(given, str):
        raise UsageError(f"strategy must be a name, got {given!r}; set --arg strategy=FedAvg")
    name = facts.server_optimizer or given
    if name is None:
        answer.unknown.append("the strategy that is wrapped takes a plain mean, as FedAvg does")
    elif (why := _STRATEGIES.get(name.lower())) is None:
        answer.unknown.append(f"{name} takes a plain mean, as FedAvg does, which is not known here")
    elif why:
        answer.fails.append(why.format(name))


def _largest_weight(answer: Answer, facts: Facts, typed: int) -> float:
    """The largest weight of a client in the mean; and what is known of clients and weights."""
    count = facts.per_round
    if count is None and facts.clients is not None and typed > facts.clients:
        raise UsageError(f"num_sampled_clients {typed} is above the {facts.clients} clients; add --per-round")
    if count is None:
        answer.unknown.append(f"{typed} clients answer in every round, as num_sampled_clients says")
        count = typed
    elif count != typed:
        answer.warnings.append(f"num_sampled_clients is {typed}, but {count} clients take part in a round")
    answer.notes.append("aggregated metrics are published without noise")
    if facts.weights == "equal":
        return 1 / count
    if isinstance(facts.weights, tuple):
        if len(facts.weights) < count:
            raise UsageError(f"{len(facts.weights)} public weights for {count} clients; give --weights one for each")
        smallest = sorted(facts.weights)[: count - 1]
        return max(facts.weights) / (max(facts.weights) + sum(smallest))
    answer.notes.append("the numbers of examples weigh the mean and are private: one client may have all the weight")
    return 1.0


def _clients_clip(answer: Answer, facts: Facts, mod: str) -> None:
    if facts.clients_clip is False:
        answer.fails.append(f"the client app does not list {mod}, so nothing is clipped")
    elif facts.clients_clip is None:
        answer.unknown.append(f"every client runs {mod}, which the server does not check")


def _client_sampling(facts: Facts) -> Callable[[float, int, float], float] | None:
    """The bound for a sample of K of N clients; None where that is not known, or somebody knows that all take part.

    A line is of other clients too, and one that a sample left out knows that it is of the N - 1 others.
    """
    if facts.clients is None or facts.per_round is None or facts.per_round >= facts.clients - 1:
        return None
    rate = facts.per_round / (facts.clients - 1)
    return lambda mu, count, delta: epsilons.without_replacement_epsilon(mu, rate, count, delta)


def _central(arguments: Arguments, facts: Facts) -> Answer:
    (noise, _), typed = (
        positive(arguments, "noise_multiplier", "clipping_norm"),
        whole(arguments, "num_sampled_clients"),
    )
    answer, accountant = Answer(), arguments["accountant"]
    counted = accountant is not None and (isinstance(accountant, dict) or flag(arguments, "accountant"))
    delta = own = facts.delta or 1e-5
    if counted:
        facts, own = _with_accountant(answer, accountant, facts, typed)
        delta = facts.delta or own
    _wrapped(answer, arguments, facts)
    weight = _largest_weight(answer, facts, typed)
    if facts.secure_sum and arguments.get("side") == "server":
        weight = 1.0
        answer.notes.append("behind SecAgg+ the server clips the mean K times over: one client moves it by 2 C")
    mu = weight * typed / noise
    out = 2 * mu if facts.weights in (None, "private") else mu  # a private weight goes with the client
    seen = "the server reads the exact sum" if facts.secure_sum else RAW
    answer.nothing(line_of("client", seen, delta), facts)
    line = line_of("client", "exact Gaussian on the mean of clipped updates", delta, "third party, client")
    said: list[float] = []
    if counted:
        line = replace(line, claimed_delta=own)
        said = [epsilons.renyi_epsilon([(noise, 1.0, count)], own, epsilons.GOOGLE_ORDERS)
                for count in (1, facts.rounds)]  # fmt: skip
    answer.gaussian(line, {"replace": 2 * mu, "zero-out": out}, facts, "zero-out" if counted else "replace",
                    _client_sampling(facts), said)  # fmt: skip
    return answer


def _with_accountant(answer: Answer, accountant: Any, facts: Facts, typed: int) -> tuple[Facts, float]:
    """The facts and the own delta of a strategy that counts: it refuses other weights and other numbers of clients.

    Args:
        accountant: True, or the settings of its PrivacyConfig by name.
    """
    answer.notes.append("with its accountant the strategy raises an error unless all weights are equal")
    said = accountant if isinstance(accountant, dict) else {}
    delta = number(said, "target_delta", 0.0, 1.0) if "target_delta" in said else facts.delta or 1e-5
    changes: dict[str, Any] = {"weights": "equal"}
    if facts.per_round is None:
        changes["per_round"] = typed
    if said.get("population_size") is not None:
        changes["clients"] = whole(said, "population_size")
        agree("--clients", facts.clients, "population_size", changes["clients"])
    return replace(facts, **changes), delta


@register(
    "flower:ServerSideFixedClipping", "s0", source="flwr 1.42.0, serverapp/strategy/dp_fixed_clipping.py", ran=True,
    aliases=("DifferentialPrivacyServerSideFixedClipping",), settings=_CENTRAL,
    does="clips each reply at the server and adds noise of z C / num_sampled_clients to the mean",
    claims=_BY_ACCOUNTANT,
    works="weigh clients equally, let num_sampled_clients be the true number, and take a multiplier of 1 or more",
)  # fmt: skip
def _server_side(arguments: Arguments, facts: Facts) -> Answer:
    answer = _central({**arguments, "side": "server"}, facts)
    no_scalars(answer, facts, "are not clipped")
    return answer


@register(
    "flower:ClientSideFixedClipping", "s0", source="flwr 1.42.0, serverapp/strategy/dp_fixed_clipping.py", ran=True,
    aliases=("DifferentialPrivacyClientSideFixedClipping",), settings=_CENTRAL,
    does="lets clients clip (fixedclipping_mod) and adds noise of z C / num_sampled_clients to the mean",
    claims=_BY_ACCOUNTANT,
    works="as server-side clipping; every client has to run the mod, which the server does not check",
)  # fmt: skip
def _client_side(arguments: Arguments, facts: Facts) -> Answer:
    answer = _central(arguments, facts)
    _clients_clip(answer, facts, "fixedclipping_mod")
    no_scalars(answer, facts, "are not clipped")
    return answer


_BIT_DEVIATIONS = 6.0  # of the bit's noise, beyond which it lies with probability 1e-9


def _adaptive(arguments: Arguments, facts: Facts) -> Answer:
    noise, typed = positive(arguments, "noise_multiplier")[0], whole(arguments, "num_sampled_clients")
    rate = number(arguments, "clip_norm_lr", 0.0)
    target = share(arguments, "target_clipped_quantile", zero=True)
    bits = typed / 20 if arguments["clipped_count_stddev"] is None else positive(arguments, "clipped_count_stddev")[0]
    if noise >= 2 * bits:
        raise UsageError(
            f"noise_multiplier {noise:g} must be below twice the noise of the bit, {2 * bits:g}, as Flower itself "
            f"demands; raise num_sampled_clients above {10 * noise:g}, or clipped_count_stddev"
        )
    answer, delta = Answer(), facts.delta or 1e-5
    _wrapped(answer, arguments, facts)
    weight = _largest_weight(answer, facts, typed)
    replies = facts.per_round or typed
    vector = (noise**-2 - (2 * bits) ** -2) ** -0.5
    # Noise goes by the new bound, the clip by the old one, and nothing cuts off the noise of the share of clipped.
    noisiest = 1 + _BIT_DEVIATIONS * bits / replies
    alone = 2.0 if facts.weights in (None, "private") else 1.0  # a private weight goes with the client
    least = vector * math.exp(-rate * (noisiest - target)) / (weight * typed)
    answer.warnings.append(
        "the rule counts clipped updates where its source counts unclipped ones: the bound runs off to 0 or infinity"
    )
    answer.nothing(line_of("client", RAW, delta), facts)
    said = [epsilons.gaussian_epsilon(2 / noise * math.sqrt(count), delta) for count in (1, facts.taking_part)]
    mus: dict[Relation, float] = {
        "replace": math.hypot(2 / least, 1 / bits), "zero-out": math.hypot(alone / least, 1 / bits)
    }  # fmt: skip
    line = line_of("client", "noise follows the new bound and the clip the old one; at the noisiest bit but for 1e-9",
                 delta, "third party, client", claimed_delta=delta)  # fmt: skip
    answer.gaussian(line, mus, facts, claims=said, lost=1e-9)
    return answer


_BY_QUANTILE = "clips to a bound that follows the share of clipped updates, and adds noise by that bound"
_JOINT = "noise_multiplier as the joint cost of mean and share"


@register(
    "flower:ServerSideAdaptiveClipping", "s0", source="flwr 1.42.0, serverapp/strategy/dp_adaptive_clipping.py",
    aliases=("DifferentialPrivacyServerSideAdaptiveClipping",), settings=_ADAPTIVE, ran=True, does=_BY_QUANTILE,
    claims=_JOINT, works="take fixed clipping: the bound moves away from its target here",
)  # fmt: skip
def _server_adaptive(arguments: Arguments, facts: Facts) -> Answer:
    answer = _adaptive(arguments, facts)
    no_scalars(answer, facts, "are not clipped")
    return answer


@register(
    "flower:ClientSideAdaptiveClipping", "s0", source="flwr 1.42.0, serverapp/strategy/dp_adaptive_clipping.py",
    aliases=("DifferentialPrivacyClientSideAdaptiveClipping",), settings=_ADAPTIVE, ran=True,
    does=f"{_BY_QUANTILE}; clients clip (adaptiveclipping_mod)", claims=_JOINT,
    works="take fixed clipping: the bound moves away from its target here",
)  # fmt: skip
def _client_adaptive(arguments: Arguments, facts: Facts) -> Answer:
    answer = _adaptive(arguments, facts)
    answer.notes.append("the bits of the clipped leave the clients in clear")
    _clients_clip(answer, facts, "adaptiveclipping_mod")
    no_scalars(answer, facts, "are not clipped")
    return answer


# NVFlare.


@register(
    "nvflare:PercentilePrivacy", "s1", source="nvflare 2.9.0, app_common/filters/percentile_privacy.py", ran=True,
    aliases=("PercentilePrivacy",),
    does="zeroes values below a percentile of all magnitudes, and cuts the others to gamma per local step",
    claims="no number; it is called a privacy preserving policy",
    works="none: add noise, for example by a filter with a clip and Gaussian noise",
    settings={"percentile": 10, "gamma": 0.01, "data_kinds": None},
)  # fmt: skip
def _percentile(arguments: Arguments, facts: Facts) -> Answer:
    percentile, gamma = number(arguments, "percentile"), number(arguments, "gamma")
    if not 0 <= percentile <= 100 or gamma <= 0:
        return does_nothing("with these arguments it sends everything and writes one line to the log", facts)
    answer = does_nothing("a deterministic function of the data has no epsilon", facts)
    answer.notes += [
        f"percentile {percentile:g} shares the largest {100 - percentile:g}% of all values, cut to {gamma:g} a step",
        "results of another kind than data_kinds leave as they are",
    ]
    if facts.scalars:
        answer.notes.append(f"{facts.scalars} 0-d arrays leave as they are")
    return answer


# Encryption.


@register(
    "nvflare:HEModelEncryptor", "s1", source="nvflare 2.9.0, app_opt/he/model_encryptor.py", ran=True,
    aliases=("HEModelEncryptor",), does="encrypts the update (CKKS); the server adds ciphertexts", claims="no epsilon",
    works="add noise on every client before encryption",
    settings={"tenseal_context_file": "client_context.tenseal", "encrypt_layers": None, "aggregation_weights": None,
              "weigh_by_local_iter": True, "data_kinds": None},
)  # fmt: skip
def _encrypted(arguments: Arguments, facts: Facts) -> Answer:
    flag(arguments, "weigh_by_local_iter")
    layers, delta = arguments["encrypt_layers"], facts.delta or 1e-5
    names = isinstance(layers, list) and layers and all(isinstance(one, str) for one in layers)
    if not (layers is None or isinstance(layers, str) or names):
        raise UsageError(
            f"encrypt_layers must be names of layers or a regular expression, got {layers!r}; leave it out for all"
        )
    some = layers if isinstance(layers, str) else ", ".join(layers or ())
    read = f"it reads every layer but {some} in clear" if some else "it reads nothing, and nothing is added to the sum"
    answer = Answer(notes=["all clients hold one secret key: one of them, on the wire or with the server, reads every "
                           "update", "the number of local steps and the metrics leave in clear"])  # fmt: skip
    answer.nothing(line_of("client", read, delta), facts)
    answer.nothing(line_of("client", "clients decrypt the exact sum", delta, "client"), facts)
    return answer


# What changes an update and has no random part that a theorem covers.


def _nothing(name: str, acts: str, source: str, does: str, why: str, claims: str = "no epsilon", works: str = "add a "
             "clip and noise that a theorem covers", aliases: tuple[str, ...] = ()) -> None:  # fmt: skip
    """Registers a filter of which nothing is proven, at any arguments."""

    def asked(arguments: Arguments, facts: Facts) -> Answer:
        return does_nothing(why, facts)

    settings = _Anything()
    KNOWN[name] = Filter(name, acts, source, does, claims, works, settings, asked, aliases)


class _Anything(dict[str, Any]):
    """Settings that have every name: they change nothing of what is proven."""

    def __contains__(self, name: object) -> bool:
        return True


_DETERMINISTIC = "a deterministic function of the data has no epsilon"
_MORE: list[Any] = [
    ("nvflare:ExcludeVars", "s1", "NVFlare f3b7c1bff, app_common/filters/exclude_vars.py",
     "leaves out tensors by name", "all other tensors leave as they are", "no epsilon",
     "share only layers that have no private input, and add noise", ("ExcludeVars",)),
    ("nvflare:ModelQuantizer", "s1", "NVFlare f3b7c1bff, app_opt/pt/quantization/",
     "rounds numbers to 16, 8 or 4 bits", _DETERMINISTIC, "no epsilon",
     "put it after noise, where it costs nothing", ("ModelQuantizer",)),
    ("flower:SecAggPlus", "s1", "flwr 77068b8497, server/workflow/secure_aggregation/secaggplus_workflow.py",
     "masks updates, so that the server reads their sum", "the sum is exact", "no epsilon",
     "add noise on every client before the masks", ("SecAggPlusWorkflow",)),
    ("paper:Soteria", "s2", "Soteria 23cf90e9, GS_attack/reconstruct_image.py", "masks one layer's gradient",
     "all other tensors leave exactly, and the mask is deterministic"),
    ("paper:PRECODE", "s2", "PRECODE c66adc4c, src/VariationalBottleneck.py", "puts a random bottleneck into a network",
     "no bounded sensitivity; the first layer's gradient is not changed"),
    ("paper:ATS", "s2", "ATSPrivacy 2496fc95, benchmark/comm.py", "transforms training images",
     "nothing bounds what one image can change"),
    ("paper:Outpost", "s2", "plato 60d6779a, defense/Outpost/perturb.py", "prunes and adds noise by risk",
     "no clip, and scale and mask follow private data"),
    ("paper:CENSOR", "s1", "CENSOR 2739a368, defense.py", "sends a vector that is orthogonal to the gradient",
     "norms leave exactly, and the gradient itself may be sent"),
    ("paper:LoRA", "s1", "flwr 77068b8497, examples/flowertune-llm", "trains and sends adapters alone",
     _DETERMINISTIC),
    ("paper:QSGD", "s1", "rog e6efc048, src/compress/compressor.py", "rounds at random to some levels",
     "zeros stay zeros, so that neighbours differ with certainty"),
    ("paper:signSGD", "s1", "rog e6efc048, src/compress/compressor.py", "sends signs", _DETERMINISTIC),
    ("paper:top-k", "s1", "rog e6efc048, src/compress/compressor.py", "sends the largest values", _DETERMINISTIC),
]  # fmt: skip
for _one in _MORE:
    _nothing(*_one)
