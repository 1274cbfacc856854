"""The rounds of one training run: who takes part, local training in chunks, the server's part, what is spent."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.base.errors import UsageError
from harness.base.presence import up
from harness.base.randomness import Stream, poisson_sample
from harness.base.vectors import Layout
from harness.datasets import load_dataset
from harness.datasets.partition import most_copies
from harness.defenses import Defense, RoundContext, State
from harness.federation.examples import Batches
from harness.federation.memory import REMEMBERED, ControlVariates, Memory, RoundVariates
from harness.federation.recorders import RoundRecorder
from harness.federation.server_round import ServerRound
from harness.models.batch_norm import UNCOVERED, Buffers
from harness.privacy import Statement, what_holds
from harness.results.files import Damaged
from harness.training.clients import (
    Chunk,
    Clients,
    RoundMeans,
    TrainsChunks,
    finish_round,
    on_device,
    restore_running,
    running_of,
)
from harness.training.settings import TrainSettings


@dataclass(frozen=True)
class Holdings:
    """Facts about the clients' data that matter for a statement about one example.

    Attributes:
        holders: the most clients that hold one example; it enters as many of a round's messages.
        copies: how often at most one client holds one example.
        uncovered: what of the model, or of the data it sees, was computed from private data without noise, in words.
    """

    holders: int = 1
    copies: int = 1
    uncovered: str | None = None


def statements_after(
    settings: TrainSettings, defense: Defense, layout: Layout, rounds: int, holdings: Holdings
) -> list[Statement]:
    """The defense's statements after a number of rounds of this run."""
    if rounds == 0:
        return []
    made = defense.statements(settings.facts(layout, rounds, holdings.holders))
    return what_holds(made, holdings.copies, holdings.uncovered)


def claimed_after(settings: TrainSettings, defense: Defense, layout: Layout, rounds: int) -> float | None:
    """Epsilon by the paper's convention after a number of rounds; None where none is claimed."""
    claims = [one.claimed_epsilon for one in defense.statements(settings.facts(layout, rounds))]
    return next((claim for claim in claims if claim is not None), None)


def affordable_rounds(settings: TrainSettings, defense: Defense, layout: Layout, holdings: Holdings) -> int:
    """The most rounds whose epsilon does not exceed the target; all of them without a target.

    ``valid`` counts the largest valid epsilon over the views that have one.

    Raises:
        UsageError: the defense has no such epsilon, or the first round already exceeds the target.
    """
    target = settings.target_epsilon
    if target is None:
        return settings.rounds

    def spent(rounds: int) -> float:
        made = statements_after(settings, defense, layout, rounds, holdings)
        found = {"claimed": [one.claimed_epsilon for one in made], "valid": [one.epsilon for one in made]}
        known = {name: [value for value in values if value is not None] for name, values in found.items()}
        if not known[settings.budget]:
            other = "claimed" if settings.budget == "valid" else "valid"
            why = f": {holdings.uncovered}" if holdings.uncovered and settings.budget == "valid" else ""
            fix = (
                f"use --budget {other}, or " if known[other] else "use a defense that adds noise, such as fed_cdp, or "
            )
            fix = "" if why and not known[other] else fix
            raise UsageError(
                f"{settings.defense} has no {settings.budget} epsilon to stop at{why}; {fix}drop --target-epsilon"
            )
        return max(known[settings.budget])

    if spent(1) > target:
        raise UsageError(f"the first round alone costs epsilon {up(spent(1))}, above {target:g}; raise sigma or target")
    low, high = 1, settings.rounds
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if spent(middle) <= target else (low, middle - 1)
    return low


# Who takes part in a round, and which examples each local step uses; keyed, so that a resumed run draws the same.


def sample_clients(settings: TrainSettings, round_index: int, key: int | str | None = None) -> list[int]:
    """The clients of a round, in ascending order; none at all is possible with Poisson sampling.

    ``key`` decides, by default the seed of the settings.
    """
    total, random = settings.clients, Stream(settings.seed if key is None else key, "participants", round_index)
    if settings.client_sampling == "all":
        return list(range(total))
    if settings.client_sampling == "poisson":
        return poisson_sample((total,), settings.clients_per_round / total, random).nonzero()[:, 0].tolist()
    return sorted(random.permutation(total)[: settings.clients_per_round].tolist())


def sample_batches(
    settings: TrainSettings, round_index: int, clients: list[int], key: int | str | None = None
) -> Batches:
    """The batches of every local step of all the clients of a round.

    ``shuffle`` passes over the client's data in a new order every round, ``partition`` in the same order every round;
    ``without-replacement`` and ``poisson`` draw every step anew. A Poisson batch has as many places as the largest one
    of the round needs, so that no number depends on which clients are trained together; those that are left over are
    not present.
    """
    key = settings.seed if key is None else key
    rows = [_places(settings, key, round_index, client) for client in clients]
    if not rows:
        return Batches(torch.zeros(0, settings.local_steps, 0, dtype=torch.long), None)
    if settings.batch_sampling != "poisson":
        return Batches(torch.stack(rows), None)
    counts = torch.stack([drawn.sum(-1) for drawn in rows])
    width = max(int(counts.max()), 1)
    return Batches(torch.stack([_first(drawn, width) for drawn in rows]), torch.arange(width) < counts[..., None])


def _first(drawn: Tensor, width: int) -> Tensor:
    """Places (L, width) of a client's data, those that were drawn (L, n) first."""
    return drawn.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[..., :width].clone()


def _places(settings: TrainSettings, key: int | str, round_index: int, client: int) -> Tensor:
    """Places (L, B), or for Poisson sampling which of the n examples each step uses (L, n)."""
    steps, batch, examples = settings.local_steps, settings.batch_size, settings.client_examples
    kind = settings.batch_sampling
    random = Stream(key, "batches", kind, client, *([] if kind == "partition" else [round_index]))
    if kind == "poisson":
        return poisson_sample((steps, examples), batch / examples, random)
    if kind == "without-replacement":
        return torch.stack([random.permutation(examples)[:batch] for _ in range(steps)])
    per_pass = examples // batch
    passes = -(-steps // per_pass)
    orders = [random.permutation(examples)[: per_pass * batch] for _ in range(passes)]
    return torch.cat(orders).reshape(-1, batch)[:steps]


class Training:
    """One run: its data, its model and its state.

    Attributes:
        recorders: are shown every round.
        train_chunks: trains a round's clients; here, unless somebody else does.
        key: of noise and sampling; the settings' seed, unless it is a secret.
    """

    recorders: Sequence[RoundRecorder] = ()
    train_chunks: TrainsChunks

    def __init__(self, settings: TrainSettings, data_root: Path) -> None:
        self.settings, self.clients = settings, Clients(settings, data_root)
        self.key: int | str = settings.seed
        self.train_chunks = partial(map, self.clients.learn)
        self.defense, self.model, self.model_name = self.clients.defense, self.clients.model, self.clients.model_name
        self.train, self.data, self.sources = self.clients.train, self.clients.data, self.clients.sources
        self.test = on_device(
            load_dataset(settings.dataset, data_root, "test", self.train.words, self.train.image_shape[-1]),
            self.data.device,
        )
        self.overlap = self.data.numel() / len(self.data.unique())
        travels = UNCOVERED if self.model.normalised else None
        self.holdings = Holdings(
            int(self.data.flatten().bincount().max()), most_copies(self.data),
            self.model.uncovered or self.train.uncovered or travels,
        )  # fmt: skip
        self._require_disjoint_clients()
        self.weights = self.model.initial_weights([(settings.seed, "global")])[0].to(self.data.device)
        self.server = settings.build_server_optimizer()
        self.velocity = torch.zeros_like(self.weights, dtype=torch.float64)
        self.squares = self.server.beginning(self.weights)
        self.memory = Memory(settings.clients)
        self.variates = ControlVariates(Memory(settings.clients), self.weights)

    def _require_disjoint_clients(self) -> None:
        """Raises:
        UsageError: clients share examples under a defense that promises something for their secure sum.
        """
        if self.overlap == 1 or not self.defense.sums_securely:
            return
        promised = self.defense.statements(self.settings.facts(self.model.layout, 1))
        if any(one.guarantee != "none" for one in promised):
            raise UsageError(
                f"clients share examples ({self.overlap:.1f} hold each one), and the noise of a secure sum does not "
                "cover this; lower --clients or --examples, or take a larger dataset"
            )

    def play_round(self, round_index: int, chunk: int) -> tuple[dict[str, float], int]:
        """One round; returns the means of what clients measured, and how many took part."""
        settings, clients = self.settings, sample_clients(self.settings, round_index, self.key)
        server = ServerRound(self.defense, self.model.layout.total, self.weights.device)
        means, running = RoundMeans(), list[Buffers]()
        recorders = [means, *self.recorders]
        for trained in self.train_chunks(self._chunks(round_index, clients, chunk, recorders)):
            context = trained.context
            self.memory.write(context.clients, context.client)
            if trained.mean_step is not None:
                self.variates.learn(context.clients, trained.mean_step)
            for recorder, of_chunk in zip(recorders, trained.recorders, strict=True):
                recorder.add(of_chunk)
            running.append(trained.running)
            server.add(trained.received, context)
        if settings.has_variates:
            self.variates.finish_round()
        finish_round(self.model, running)
        context = self._context(round_index, clients or [0], {})
        step, self.velocity, self.squares = self.server.step(self.velocity, self.squares, server.aggregate(context))
        stepped = (self.weights.double() + settings.server_learning_rate * step).float()
        self.weights = self.defense.applied(stepped, context)
        return means.take(), len(clients)

    def state(self) -> dict[str, Any]:
        """Return the memory of the defense and of the algorithm, for a checkpoint."""
        return {
            "defense": self.memory.tensors(), "algorithm": self.variates.memory.tensors(),
            "velocity": self.velocity.cpu(), "running": running_of(self.model),
            **({} if self.squares is None else {"squares": self.squares.cpu()}),
        }  # fmt: skip

    def variates_after(self, done: int) -> RoundVariates | None:
        """The control variates that the round after ``done`` begins with; None without SCAFFOLD."""
        if not self.settings.has_variates:
            return None
        return self.variates.beginning(list(range(self.settings.clients)), done >= self.settings.warm_up_rounds)

    def restore(self, weights: Tensor, state: dict[str, Any]) -> None:
        """Goes on from a checkpoint.

        Raises:
            Damaged: it does not fit this run's model, clients, defense or algorithm.
        """
        squares, kept = state.get("squares"), self.squares
        if (squares is None) != (kept is None):
            raise Damaged("is damaged: 'squares' are not of this server's optimizer")
        pairs = [("weights", weights, self.weights), ("velocity", state["velocity"], self.velocity)]
        for name, found, own in pairs if squares is None or kept is None else [*pairs, ("squares", squares, kept)]:
            if (found.shape, found.dtype) != (own.shape, own.dtype):
                raise Damaged(f"is damaged: {name!r} has shape {tuple(found.shape)} of {found.dtype}")
        parameters, algorithm = len(self.weights), REMEMBERED if self.settings.has_variates else {}
        problem = self.memory.problem(
            state["defense"], self.defense.server_remembers(), self.defense.clients_remember(), parameters
        ) or self.variates.memory.problem(state["algorithm"], algorithm, algorithm, parameters)
        if problem:
            raise Damaged(problem)
        restore_running(self.model, state["running"])
        self.weights, self.velocity = weights.to(self.weights.device), state["velocity"].to(self.weights.device)
        self.squares = squares if squares is None else squares.to(self.weights.device)
        self.memory.restore(state["defense"], self.weights)
        self.variates.memory.restore(state["algorithm"], self.weights)

    def _chunks(
        self, round_index: int, clients: list[int], size: int, recorders: Sequence[RoundRecorder]
    ) -> Iterator[Chunk]:
        """The clients of a round, each once: what they remember is as it was when the round began."""
        batches, running = sample_batches(self.settings, round_index, clients, self.key), running_of(self.model)
        moving = round_index >= self.settings.warm_up_rounds
        sent = self.defense.broadcast(self.weights, self._context(round_index, clients or [0], {}))
        for rows in _slices(len(clients), size):
            part = clients[rows]
            yield Chunk(
                self._context(round_index, part, self.memory.read(part)), batches.of(rows), sent, running,
                self.variates.beginning(part, moving) if self.settings.has_variates else None,
                [recorder.for_chunk() for recorder in recorders],
            )  # fmt: skip

    def _context(self, round_index: int, clients: list[int], state: State) -> RoundContext:
        settings = self.settings
        return RoundContext(
            round_index, 0, settings.learning_rate, settings.cohort(), self.model.layout,
            tuple((self.key, client) for client in clients), client=state, server=self.memory.server,
            clients=tuple(clients),
        )  # fmt: skip


def chunks_of(settings: TrainSettings, size: int) -> int:
    """Chunks that the clients of a round make, as many as there usually are."""
    return len(_slices(settings.clients_per_round, size))


def _slices(clients: int, size: int) -> list[slice]:
    """Rows in chunks of a size, none of a single one beside others: one row alone takes other CPU kernels."""
    starts = list(range(0, clients, size))
    if len(starts) > 1 and clients - starts[-1] == 1:
        starts.pop()
    return [slice(first, end) for first, end in pairwise([*starts, clients])]
