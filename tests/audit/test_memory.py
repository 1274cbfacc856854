"""The server's end of a round: who counts, and what is forgotten."""

import torch
from torch import Tensor

from harness.audit.memory import Memory, ServerRound, chunks, quiet
from harness.defenses import Cohort, Defense, RoundContext, validated_defense
from harness.layout import Layout


@validated_defense
class Counting(Defense):
    """Sends a one beside every update and remembers how many arrived."""

    def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
        context.client["rounds"] = context.client.get("rounds", 0) + torch.ones(len(update))
        context.sent["ones"] = torch.ones(len(update), 1)
        return update

    def aggregate(self, total: Tensor, context: RoundContext) -> Tensor:
        context.server["arrived"] = context.server.get("arrived", 0) + context.sent["ones"]
        return total / context.cohort.clients_per_round


def memory() -> Memory:
    return Memory(Counting(), 0.05, Cohort(8, 4), Layout(("a",), ((2,),)), "stream", 1.0)


def test_sampled_clients_count_and_canaries_that_are_out_report_nothing() -> None:
    played = memory()
    present, reporting = torch.tensor([True, True, False]), torch.tensor([True, False, True])
    for now in range(2):
        server = ServerRound(played, now)
        server.receive(
            torch.tensor([[1.0, 0.0], [0.0, 2.0], [4.0, 4.0]]), played.context(now, 0, 3), present, reporting
        )
        assert server.finish().tolist() == [0.25, 0.5]
    assert played.server["arrived"].tolist() == [2.0]
    assert played.clients[0]["rounds"].tolist() == [2.0, 2.0, 2.0]


def test_a_quiet_look_leaves_no_trace() -> None:
    played = memory()
    context = quiet(played.context(0, 0, 3))
    played.defense.client_message(torch.zeros(3, 2), context)
    assert context.noise_scale == 0
    assert (played.server, played.clients) == ({}, {0: {}})


def test_chunks_cover_every_row_once() -> None:
    assert [row for rows in chunks(600) for row in range(rows.start, rows.stop)] == list(range(600))
    assert list(chunks(0)) == []
