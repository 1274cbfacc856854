"""What the models of several rounds tell of members, beside the last one alone.

    nice python benchmarks/membership_rounds.py --dataset mnist --model mlp2 --rounds 8

Clients share members out between them and train by FedAvg, with Adam of their own. Two servers look: one has the model
of every round, after averaging, and asks who was in any client's data; the other has what one client sent in every
round, and asks who was in that client's. ``--outsiders`` asks of as many examples that no client holds.
"""

import harness  # noqa: F401  (before torch, which reads at its start what this sets)

# isort: split
import argparse
from collections.abc import Sequence

import torch
from membership_peers import without_twins
from torch import nn
from torch.nn import functional

from harness.datasets import Dataset, data_root, load_dataset
from harness.judging.members import Final, Sides
from harness.judging.membership import judge_members
from harness.models import build_module

State = dict[str, torch.Tensor]


def trained(module: nn.Module, start: State, own: Dataset, share: float, random: torch.Generator) -> State:
    """What a client sends after a pass over a share of its examples, drawn anew in each round."""
    module.load_state_dict(start)
    optimizer = torch.optim.Adam(module.parameters())
    drawn = torch.randperm(len(own.labels), generator=random)[: round(share * len(own.labels))]
    for batch in drawn.split(32):
        optimizer.zero_grad()
        functional.cross_entropy(module(own.images[batch]), own.labels[batch]).backward()
        optimizer.step()
    return {name: value.clone() for name, value in module.state_dict().items()}


def played(asked: argparse.Namespace, clients: Sequence[Dataset]) -> tuple[list[State], list[State]]:
    """The averaged model of each round, and what the first client sent."""
    shape, classes = clients[0].image_shape, clients[0].num_classes
    module, random = build_module(asked.model, shape, classes, asked.seed), torch.Generator().manual_seed(asked.seed)
    state: State = {name: value.clone() for name, value in module.state_dict().items()}
    averaged, sent = [], []
    for _ in range(asked.before + asked.rounds):
        theirs = [trained(module, state, own, asked.share, random) for own in clients]
        state = {name: torch.stack([one[name] for one in theirs]).mean(0) for name in state}
        averaged.append(state)
        sent.append(theirs[0])
    return averaged[asked.before :], sent[asked.before :]


def main() -> None:
    """Print the lines of ``harness judge --members`` of both servers."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--dataset", default="mnist")
    options.add_argument("--model", default="mlp2")
    options.add_argument("--clients", type=int, default=4)
    options.add_argument("--members", type=int, default=500, help="of each client")
    options.add_argument("--non-members", type=int, default=2000)
    options.add_argument("--rounds", type=int, default=8, help="that a server keeps")
    options.add_argument("--before", type=int, default=0, help="rounds before those")
    options.add_argument("--share", type=float, default=1.0, help="of its examples that a client trains on in a round")
    options.add_argument("--references", type=int, default=8)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--outsiders", action="store_true", help="ask of examples that no client holds")
    asked = options.parse_args()
    total = asked.clients * asked.members
    data = without_twins(
        load_dataset(asked.dataset, data_root(None), "train"), 2 * total + asked.non_members, asked.seed
    )
    clients = [data.take(torch.arange(asked.members) + place * asked.members) for place in range(asked.clients)]
    others = data.take(torch.arange(asked.non_members) + total)
    averaged, sent = played(asked, clients)
    first = total + asked.non_members if asked.outsiders else 0
    for title, states, count in (("averaged models", averaged, total), ("one client's models", sent, asked.members)):
        finals = []
        for number, state in enumerate(states, 1 + asked.before):
            module = build_module(asked.model, data.image_shape, data.num_classes, 0)
            module.load_state_dict(state)
            finals.append(Final(asked.model, data.image_shape, data.num_classes, f"round {number}", module))
        members = data.take(torch.arange(count) + first)
        made = judge_members(finals, Sides(members, others), asked.references, asked.seed)
        print(f"{title}:", *made.lines(), sep="\n  ")


if __name__ == "__main__":
    main()
