"""One round's messages on their way to their sum: added as they come, or kept for a secure sum of all of them."""

from collections import defaultdict
from dataclasses import replace

import torch
from torch import Tensor

from harness.defenses import Defense, RoundContext, State


class RoundSum:
    """The sum (P,) of the messages of a round's clients, which come in chunks."""

    def __init__(self, defense: Defense, parameters: Tensor) -> None:
        self._defense, self._secure = defense, defense.acts_at("sum_securely")
        self._total = torch.zeros_like(parameters, dtype=torch.float64)
        self._messages: list[Tensor] = [self._total.new_zeros(0, len(parameters))]
        self._local: dict[str, list[Tensor]] = defaultdict(list)

    def add(self, messages: Tensor, local: State) -> None:
        """Takes in the messages (N, P) of some clients, and what they remember of the round."""
        if self._secure:
            self._messages.append(messages)
            for name, values in local.items():
                self._local[name].append(values)
            return
        # One client after the other, so that the sum does not depend on the chunks.
        for message in messages:
            self._total += message

    def total(self, context: RoundContext) -> Tensor:
        """The sum, with the context of all the round's clients.

        Raises:
            UsageError: a secure sum of these messages is impossible.
        """
        if not self._secure:
            return self._total
        local = {name: torch.cat(parts) for name, parts in self._local.items()}
        return self._defense.sum_securely(torch.cat(self._messages), replace(context, local=local))
