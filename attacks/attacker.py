"""Common part of every attack, whether it reconstructs examples or only tells them apart."""

from dataclasses import fields
from typing import Any, ClassVar, Literal

from torch import Tensor

from harness.attacks.residual import unread_level
from harness.base.building import validated_record
from harness.base.registry import Registry
from harness.observation import Observation, Tier
from harness.tampering import Tamper

Reads = Literal["images", "texts", "anything"]

#: In the reason of an attack that reads such networks, and that only the weights at hand make impossible.
SHUT_OUT = "not applicable:"


#: Decorator of an attack: a frozen record whose settings are validated.
validated_attack = validated_record


@validated_attack
class Attacker:
    """A record of settings; ``tier`` says what it knows of the defense.

    ``reads_level``: whether it holds the level of the noise, where that follows the private gradient, against its
    candidates: then more of such noise hides nothing from it.
    ``reads_coding``: whether it uses all that a coarser form of numbers (rounded, signs, the largest alone) leaves of
    them: by the form of each candidate, or by the bounds that it sets. Else its failure behind such a form says little.
    ``reads``: what it can make, numbers of images that change little by little, or tokens.
    ``by_vectors``: whether one that changes numbers of images also reads texts, by the vectors of their words. No suite
    takes it there.
    ``several``: whether what it believes of the noise, of clips and of masks is right where several examples lie behind
    one observation, so that its failure there says something.
    ``knows_of_examples``: what it knows of the attacked examples beyond their class and the data they are drawn from,
    in half a sentence; None of the tool's own attacks. Of such an attack no blind probability is known, so that no
    theorem is held against its successes, and more noise need not stop it.
    """

    tier: ClassVar[Tier] = "plain"
    reads_level: ClassVar[bool] = False
    reads_coding: ClassVar[bool] = False
    reads: ClassVar[Reads] = "images"
    by_vectors: ClassVar[bool] = False
    several: ClassVar[bool] = False
    knows_of_examples: ClassVar[str | None] = None

    def parameters(self) -> dict[str, Any]:
        """Every hyper-parameter by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def superfluous(self, observation: Observation) -> str | None:
        """Return why a suite need not try the attack there, since other members find all that it could; else None.

        Args:
            observation: as the attack would get it. Named itself, the attack runs in any case.
        """
        return None

    def tamper(self, clients: int, examples: int) -> Tamper | None:
        """Return the tampering of the network before the round; None for a server that follows the protocol.

        Args:
            clients: whose messages it sees in one sum; 1 where it sees each.
            examples: of each of them that are behind what it sees.

        Raises:
            UsageError: that is impossible for so many.
        """
        return None

    def doubt(self, observation: Observation, images: Tensor, labels: Tensor) -> str | None:
        """Return the reason why what the attacker believes of the noise cannot be so, in words, or None.

        Args:
            observation: R rows.
            images: (R, n, C, H, W), what it made of them; of one that identifies, each row's most probable candidate.
            labels: (R, n), theirs; (R,) of one that identifies.
        """
        return None if self.tier == "plain" else unread_level(observation)


@validated_attack
class Identifier(Attacker):
    """Says which of some known examples lies behind an observation. It reconstructs nothing."""

    reads: ClassVar[Reads] = "anything"

    def distances(self, observation: Observation, candidates: Tensor, labels: Tensor, chunk: int = 128) -> Tensor:
        """Return the improbability of each candidate: (R, C) float64 on the CPU, the least for the most probable.

        Args:
            observation: R rows.
            candidates: (R, C, ...) images in [0, 1], those of each row in an order that says nothing.
            labels: (R,), the class of each row's candidates.
            chunk: most pairs of a row and a candidate whose gradients are held at once.

        Raises:
            UsageError: it is no match for what was read, such as several examples with noise of an unknown level.
        """
        raise NotImplementedError


ATTACKS: Registry[type[Attacker]] = Registry("attack", "harness.attacks")
