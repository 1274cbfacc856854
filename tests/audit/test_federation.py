"""The server's end of a round: who counts, and what is forgotten."""

import torch
from torch import Tensor

from harness.audit.federation import AuditedFederation, chunks
from harness.base.vectors import Layout
from harness.defenses import Cohort, Custom, Defense, Operation, Point, RoundContext, validated_defense


@validated_defense
class Counting(Defense):
    """Sends a one beside every update and remembers how many arrived."""

    def operations(self, cohort: Cohort) -> list[Operation]:
        return [Custom(counted, adds=None), Custom(arrived, at=Point.AGGREGATE)]


def counted(update: Tensor, context: RoundContext) -> Tensor:
    context.client["rounds"] = context.client.get("rounds", 0) + torch.ones(len(update))
    context.sent["ones"] = torch.ones(len(update), 1)
    return update


def arrived(total: Tensor, context: RoundContext) -> Tensor:
    context.server["arrived"] = context.server.get("arrived", 0) + context.sent["ones"]
    return total


def federation() -> AuditedFederation:
    return AuditedFederation(Counting(), 0.05, Cohort(8, 4), Layout(("a",), ((2,),)), "stream", 1.0)


def test_sampled_clients_count_and_canaries_that_are_out_report_nothing() -> None:
    played = federation()
    present, reporting = torch.tensor([True, True, False]), torch.tensor([True, False, True])
    for now in range(2):
        server, updates = played.begin(), torch.tensor([[1.0, 0.0], [0.0, 2.0], [4.0, 4.0]])
        played.deliver(server, updates, played.context(now, 0, 3), present, reporting)
        assert played.finish(server, now).tolist() == [0.25, 0.5]
    assert played.server["arrived"].tolist() == [2.0]
    assert played.clients[0]["rounds"].tolist() == [2.0, 2.0, 2.0]


def test_a_quiet_look_leaves_no_trace() -> None:
    played = federation()
    context = played.context(0, 0, 3).quiet()
    played.defense.client_message(torch.zeros(3, 2), context)
    assert context.noise_scale == 0
    assert (played.server, played.clients) == ({}, {0: {}})


def test_chunks_cover_every_row_once() -> None:
    assert [row for rows in chunks(600) for row in range(rows.start, rows.stop)] == list(range(600))
    assert list(chunks(0)) == []
