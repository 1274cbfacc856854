"""Captures of the same clients in several rounds, put side by side: each client once, with all that it sent."""

import hashlib
import itertools
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from harness.base.building import build
from harness.base.errors import UsageError
from harness.base.ranges import CountOrNone
from harness.defenses import DEFENSES
from harness.evaluation.cohorts import taking_part, told_by_sums
from harness.federation.taps import Tap
from harness.judging.capture import BEFORE, FACTS, Capture, file_of
from harness.judging.federation import CapturedClients
from harness.models.batch_norm import STATISTICS
from harness.results.arrays import FIX, StoredArrays
from harness.results.files import MOST_OF_A_DOCUMENT, Absent, parse_json, read_stored

_ASKED, _OTHERS, _SUMS = "--rounds-seen", "--same-data client", "--same-data cohorts"
# The cosine of a step between two models and what was sent, from which on that is what made the step.
_LEADS = 0.999
# Of a model's norm, how far another one is at least that is not taken for the same.
_STILL = 1e-9

SameData = Literal["batch", "client", "cohorts"]
"""What a client trains on in each of its rounds: the same examples, or some of its own that nobody else knows. Of
``cohorts`` it is the same examples, and all that an attacker has of a round is the sum of its clients."""


def chosen_data(given: str) -> SameData:
    """Return what was asked for by its name. Raises UsageError: an unknown one."""
    for one in get_args(SameData):
        if given == one:
            return one
    raise UsageError(f"unknown data {given!r}; use --same-data batch, client or cohorts")


def over_rounds(
    clients: Sequence[CapturedClients], rounds: int, same_data: SameData = "batch"
) -> list[CapturedClients]:
    """Each client once, as it was in its first round, with ``later`` ones beside it; unchanged for a single round.

    Args:
        clients: groups whose batches are of the same sizes, with their truth.
        rounds: how many rounds an attacker has of each client, the first ones in order; of ``cohorts``, how many there
            are in all.
        same_data: ``batch`` and ``cohorts`` need the same examples in all of them.

    Raises:
        UsageError: the truth or a client's name is missing, a client has fewer captures, two of one round, other
            examples in one of them, or an optimizer that remembers earlier rounds; a round is missing that a client
            remembers; rounds are seen to have other numbers than they were played in; or there is a round of which not
            all clients were captured, who begin with one model, where their sum is seen.
    """
    if rounds == 1 and same_data != "batch":
        raise UsageError(f"--same-data {same_data} is of several rounds; add {_ASKED} R")
    if rounds == 1:
        return list(clients)
    if same_data == "cohorts":
        made = [_behind_sums(_of_one_size(clients), rounds)]
    else:
        made = [_side_by_side(one, rounds, same_data) for one in clients]
    _require_numbers(clients)
    return made


def _side_by_side(captured: CapturedClients, rounds: int, same_data: SameData) -> CapturedClients:
    of_client = _rows_of_clients(captured)
    rows = [_first_of(name, known, rounds) for name, known in of_client.items()]
    _require_remembered(captured, of_client, rounds)
    _tell_gaps(captured, dict(zip(of_client, rows, strict=True)))
    if same_data == "client":
        _require_one_pass(captured)
    else:
        for name, own in zip(of_client, rows, strict=True):
            _require_same_examples(captured, name, own)
    first, *later = (captured.take([own[number] for own in rows]) for number in range(rounds))
    record = first.record.model_copy(update={"round": captured.number(first.at[0])})
    return replace(first, record=record, later=tuple(later), digest=" ".join(one.digest for one in (first, *later)))


def _rows_of_clients(captured: CapturedClients) -> dict[str, dict[int, int]]:
    """Return the row of each client's capture of each round, by its name and the number of rounds before."""
    if captured.images is None:
        raise UsageError(
            f"{_ASKED} needs each capture's truth, to know which of its examples are the same from round to round"
        )
    if captured.record.state == "carried":
        raise UsageError(f"{_ASKED} combines clients that begin each round anew; these carry an optimizer's state on")
    of_client: dict[str, dict[int, int]] = {}
    for row, (name, at) in enumerate(zip(captured.names, captured.at, strict=True)):
        if name is None:
            raise UsageError(f'{_ASKED} needs to know which captures are of one client; add "client" to capture.json')
        known = of_client.setdefault(name, {})
        if at in known:
            raise UsageError(f"client {name!r} has two captures of round {captured.number(at)}; leave one of them out")
        known[at] = row
    return of_client


def _first_of(name: str, known: dict[int, int], rounds: int) -> list[int]:
    if len(known) < rounds:
        raise UsageError(
            f"client {name!r} was captured in {len(known)} round(s), fewer than {_ASKED} {rounds}; lower it, or leave "
            "that client out"
        )
    return [known[at] for at in sorted(known)[:rounds]]


def _require_remembered(captured: CapturedClients, of_client: Mapping[str, Mapping[int, int]], rounds: int) -> None:
    """All rounds from the first on are there, where clients remember them."""
    declared, tap = captured.record.defense, Tap.SENT if captured.of_update else Tap.STEP
    if declared is None or not build(DEFENSES, declared.name, declared.settings).clients_remember(tap):
        return
    for name, known in of_client.items():
        missing = next((at for at in range(rounds) if at not in known), None)
        if missing is not None:
            number = captured.number(missing)
            raise UsageError(
                f"client {name!r} was not captured in round {number}, which clients of {declared.name!r} remember later"
                f"{captured.record.first_is_missing(number)}; capture all rounds from the first on, or leave {_ASKED} "
                "out"
            )


def _tell_gaps(captured: CapturedClients, rows: Mapping[str, Sequence[int]]) -> None:
    """Says where a client has no capture between two that are used: it took no part, or one was forgotten."""
    gaps = [
        (name, captured.number(at))
        for name, own in rows.items()
        for at in sorted(set(range(captured.at[own[0]], captured.at[own[-1]])) - {captured.at[row] for row in own})
    ]
    if gaps:
        (name, number), more = gaps[0], f" and {len(gaps) - 1} more" if len(gaps) > 1 else ""
        sys.stderr.write(
            f"harness: client {name!r} was not captured in round {number}{more}: attackers have the rounds that were; "
            "capture it too if the client took part\n"
        )


def _require_numbers(clients: Sequence[CapturedClients]) -> None:
    """Nothing that is seen shows that rounds have other numbers than those in which they were played.

    Clients who share a model begin one round with it; and what was sent leads from the model of a round to that of a
    later one. Models of clients who share none, beside others who are not captured, show neither.
    """
    begun = defaultdict[bytes, list[tuple[int, str | None]]](list)
    for one in clients:
        for name, at, model in zip(one.names, one.at, one.before, strict=True):
            begun[hashlib.sha256(model.numpy().tobytes()).digest()].append((at, name))
    times = Counter(at for places in begun.values() for at in {at for at, _ in places})
    for places in begun.values():
        for at, name in places:
            others = [place for place in places if place[1] != name] if times[at] > 1 else []
            if others:
                here, then = clients[0].number(at), clients[0].number(others[0][0])
                raise UsageError(
                    f"client {name!r} begins round {here} with the model that {others[0][1]!r} begins round {then} "
                    f'with, and others begin round {here} with another; correct "round" in {FACTS}, or judge clients '
                    "of each model apart"
                )
    if max(times.values()) == 1:
        _require_forward(clients, "clients together")
    for one in clients:
        for name in dict.fromkeys(one.names):
            _require_forward([one.take([row for row, own in enumerate(one.names) if own == name])], f"client {name!r}")


def _require_forward(clients: Sequence[CapturedClients], who: str) -> None:
    """No mean of what was sent in a round leads to the model of an earlier one."""
    rounds = sorted({at for one in clients for at in one.at})
    rows = [[(one, row) for one in clients for row, own in enumerate(one.at) if own == at] for at in rounds]
    models = torch.stack([own[0][0].before[own[0][1]].double() for own in rows])
    moves = -torch.stack([torch.stack([one.target[row].double() for one, row in own]).mean(0) for own in rows])
    leads = along_the_way(models, moves) > _LEADS * moves.norm(dim=1)
    back = (leads & ~leads.T).triu(1).nonzero().tolist()  # where a step leads forward too, they swing
    if back:
        earlier, later = (clients[0].number(rounds[place]) for place in back[0])
        raise UsageError(
            f"what {who} sent in round {later} leads to the model that round {earlier} begins with; correct "
            f'"round" in {FACTS}'
        )


def along_the_way(models: Tensor, own: Tensor) -> Tensor:
    """Return how far a vector of each of R rounds goes along the way from that round's model to each model.

    Args:
        models, own: (R, P) float64. Returns: (R, R), of each model (rows) and each vector; 0 where models are alike.
    """
    far, along = torch.cdist(models, models, compute_mode="donot_use_mm_for_euclid_dist"), models @ own.T
    return ((along - along.diagonal()) / far).where(far > _STILL * models.norm(dim=1), 0.0)


def _require_same_examples(
    captured: CapturedClients, name: str, rows: Sequence[int], fix: str = f"or any with {_OTHERS}"
) -> None:
    """Raise UsageError where a client's captures have other examples, or have them in other steps.

    Within one step their order makes no difference.
    """
    assert captured.images is not None and captured.labels is not None
    size = captured.record.step_size

    def steps(row: int) -> list[list[bytes]]:
        examples = zip(captured.images[row].numpy(), captured.labels[row].tolist(), strict=True)  # pyright: ignore
        named = [image.tobytes() + bytes(str(label), "ascii") for image, label in examples]
        return [sorted(named[first : first + size]) for first in range(0, len(named), size)]

    first = steps(rows[0])
    for row in rows[1:]:
        if steps(row) != first:
            raise UsageError(
                f"client {name!r} trained on other examples in round {captured.number(captured.at[row])} than in round "
                f"{captured.number(captured.at[rows[0]])}; {_ASKED} combines the same examples, {fix}"
            )


# Sums of a round's clients, where that is all that is seen of them.


def _of_one_size(clients: Sequence[CapturedClients]) -> CapturedClients:
    if len(clients) > 1:
        raise UsageError(
            f"captures are of clients whose batches differ in size, and {_SUMS} is of clients who weigh alike in a "
            "sum; capture clients with equal batches"
        )
    return clients[0]


def _behind_sums(captured: CapturedClients, rounds: int) -> CapturedClients:
    """Clients with the updates that the sums of so many rounds tell, as if each had been seen in its first round."""
    _rows_of_clients(captured)
    numbers = sorted(set(captured.at))[:rounds]
    if len(numbers) < rounds:
        raise UsageError(f"captures are of {len(numbers)} round(s), fewer than {_ASKED} {rounds}; lower it")
    cohorts = [[row for row, at in enumerate(captured.at) if at == number] for number in numbers]
    for cohort in cohorts:
        _require_whole(captured, cohort)
    of_client = defaultdict[str, list[int]](list)
    for row in itertools.chain.from_iterable(cohorts):
        of_client[str(captured.names[row])].append(row)
    for name, own in of_client.items():
        _require_same_examples(captured, name, own, "so leave that round out")
    names, part = taking_part([[str(captured.names[row]) for row in cohort] for cohort in cohorts])
    part /= part.sum(1, keepdim=True)
    first = captured.take([of_client[name][0] for name in names])
    means = torch.stack([captured.target[cohort].double().mean(0) for cohort in cohorts])
    updates, recovered, gain = told_by_sums(means, part, first.target)
    record = first.record.model_copy(update={"round": captured.number(numbers[0])})
    return replace(
        first, record=record, target=updates, grain=first.grain * gain, recovered=recovered, running={},
        later=tuple(captured.take(cohort) for cohort in cohorts), digest=f"{captured.digest} {_SUMS} {rounds}",
    )  # fmt: skip


def _require_whole(captured: CapturedClients, cohort: Sequence[int]) -> None:
    """All clients of a round were captured, and they begin it with one model."""
    each, number = captured.record.clients_per_round, captured.number(captured.at[cohort[0]])
    if each is None:
        raise UsageError(
            f'nobody says of how many clients a sum is; add "clients_per_round" to {FACTS}, and capture all of them'
        )
    if len(cohort) != each:
        raise UsageError(
            f"round {number} has captures of {len(cohort)} clients, and clients_per_round is {each}; capture all "
            f"clients of each round, or correct it in {FACTS}"
        )
    if each == 1:
        raise UsageError(f"clients_per_round is 1, and the sum of one client is its message; leave {_SUMS} out")
    apart = next((row for row in cohort if not torch.equal(captured.before[row], captured.before[cohort[0]])), None)
    if apart is not None:
        raise UsageError(
            f"clients {captured.names[cohort[0]]!r} and {captured.names[apart]!r} begin round {number} with different "
            "models, and a sum is of one model; name captures of one job"
        )


def _require_one_pass(captured: CapturedClients) -> None:
    record = captured.record
    if captured.of_update and (record.passes > 1 or len(set(record.step_sizes())) > 1):
        raise UsageError(f"{_OTHERS} is of one pass over whole batches in a round; leave {_OTHERS} out")


@dataclass(frozen=True, eq=False)
class Held:
    """Examples that clients used in several rounds, each once.

    Attributes:
        images, labels: (V, n, ...) and (V, n); who used fewer than n has its first one again.
        drawn: (V, T, b), which of them each round took.
    """

    images: Tensor
    labels: Tensor
    drawn: Tensor


def held_over(captured: CapturedClients) -> Held:
    """The different examples of clients with later rounds, and which of them each round took.

    Raises:
        UsageError: a round took an example twice.
    """
    rounds = (captured, *captured.later)
    parts = [(one.images, one.labels) for one in rounds if one.images is not None and one.labels is not None]
    images, labels = (torch.stack(values, 1) for values in zip(*parts, strict=True))
    every, firsts = [], []
    for row in range(captured.clients):
        known, places = dict[tuple[bytes, int], int](), list[int]()
        own = zip(images[row].flatten(0, 1).numpy(), labels[row].flatten().tolist(), strict=True)
        for place, (image, label) in enumerate(own):
            places.append(known.setdefault((image.tobytes(), label), place))
        where = {first: number for number, first in enumerate(known.values())}
        firsts.append(list(where))
        every.append([where[place] for place in places])
    drawn = torch.tensor(every).reshape(labels.shape)
    for name, own in zip(captured.names, drawn, strict=True):
        if any(len(one.unique()) < len(one) for one in own):
            raise UsageError(f"client {name!r} took an example twice in a round; {_OTHERS} is of different ones")
    most = max(map(len, firsts))
    kept = torch.tensor([own + own[:1] * (most - len(own)) for own in firsts])
    rows = torch.arange(captured.clients)[:, None]
    return Held(images.flatten(1, 2)[rows, kept], labels.flatten(1, 2)[rows, kept], drawn)


# --------------------------------------------------------------------------------------
# The models that a server gave out, round by round, as its clients' captures have them.


class _Numbered(BaseModel):
    """The round of a capture. Its other facts do not matter here, nor whether they suffice to judge it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    round: CountOrNone = 0


def released_models(folders: Sequence[Path]) -> dict[int, dict[str, NDArray[np.float64]]]:
    """Return what clients were sent at the beginning of each captured round, by its number, in order.

    Canary clients do not send what they trained, so that their captures cannot be judged: the models are read from
    those too.

    Raises:
        UsageError: a folder is no capture or its round did not end, or clients of one round were sent different models,
            so that no single one was given out.
    """
    of_round = dict[int, tuple[Path, StoredArrays]]()
    for folder in folders:
        number, model = _begun(folder)
        first, given = of_round.setdefault(number, (folder, model))
        if first is not folder and not _alike(given, model):
            raise _begin_apart(first, folder, number)
    return {number: _model(of_round[number][1]) for number in sorted(of_round)}


def _begun(folder: Path) -> tuple[int, StoredArrays]:
    """The round of a capture, and the model that its client was sent."""
    try:
        number = read_stored(folder / FACTS, _Numbered, parse_json, "correct it there", MOST_OF_A_DOCUMENT).round
    except Absent as problem:
        raise UsageError(f"{str(folder)!r} is no capture (it has no {FACTS}); {FIX}") from problem
    model = file_of(folder, BEFORE)
    if not model.exists():
        raise UsageError(f"capture {str(folder)!r} has no {model.name}: its round did not end; leave it out")
    return number, StoredArrays(model)


def require_one_model(captures: Sequence[Capture]) -> None:
    """Clients of each round begin with the same model, running statistics aside. Raises UsageError."""
    firsts = dict[int, Capture]()
    for one in captures:
        first = firsts.setdefault(one.record.round, one)
        if not _alike(first.before, one.before, STATISTICS):
            raise _begin_apart(first.folder, one.folder, one.record.round)


def _begin_apart(first: Path, other: Path, number: int) -> UsageError:
    return UsageError(
        f"captures {str(first)!r} and {str(other)!r} of round {number} begin with different models; name captures of "
        "one job"
    )


def _alike(one: StoredArrays, other: StoredArrays, aside: Collection[str] = ()) -> bool:
    return set(one) == set(other) and all(
        np.array_equal(np.asarray(one[name]), np.asarray(other[name]))
        for name in one
        if name.rpartition(".")[2] not in aside
    )


def _model(arrays: StoredArrays) -> dict[str, NDArray[np.float64]]:
    return {name: np.asarray(arrays[name], dtype=np.float64) for name in arrays}
