"""The taps of a client's round: what an adversary can read, and where.

Surfaces follow Fed-αCDP section 3.1 (type-0 server, type-1 client update, type-2 local step). A surface is a tap
between two hooks of a client's round; nothing here depends on which defense is running.
"""

from enum import StrEnum
from typing import Literal, Self

from harness.base.errors import UsageError

Unit = Literal["example", "step", "update"]


class Hook(StrEnum):
    """The stages of a round between which somebody can read it, in the order they come."""

    CLIENT_STEP = "client_step"
    CLIENT_MESSAGE = "client_message"
    SUM_SECURELY = "sum_securely"
    SERVER_RECEIVE = "server_receive"
    AGGREGATE = "aggregate"


class Point(StrEnum):
    """The points of a round at which an operation of a defense can act, in the order they come.

    Attributes:
        hook: the stage of the round that a point lies in; None where no tap shows what happens there.
    """

    hook: Hook | None

    def __new__(cls, name: str, hook: Hook | None = None) -> Self:
        """The point of a name, and its stage."""
        point = str.__new__(cls, name)
        point._value_, point.hook = name, hook
        return point

    BROADCAST = "broadcast"  # weights (P,) on their way to the clients
    NETWORK = "network"  # weights (N, P) that clients received, before they train
    INPUTS = "inputs"  # examples (N, B, ...) of a local step
    EXAMPLES = "examples", Hook.CLIENT_STEP  # their gradients (N, B, P)
    STEP = "step", Hook.CLIENT_STEP  # the direction (N, P) of a local step
    MESSAGE = "message", Hook.CLIENT_MESSAGE  # updates (N, P) before they leave
    SUM = "sum", Hook.SUM_SECURELY  # messages (N, P) of a round, into the sum (P,) that is all the server gets
    ARRIVAL = "arrival", Hook.SERVER_RECEIVE  # messages (N, P) at the server
    AGGREGATE = "aggregate", Hook.AGGREGATE  # the sum (P,) of a round's messages, before it is divided
    APPLIED = "applied"  # weights (P,) after the server's optimizer


_STEP, _SENT = (Hook.CLIENT_STEP,), (Hook.CLIENT_STEP, Hook.CLIENT_MESSAGE)


class Tap(StrEnum):
    """A place where the round can be read; equal to its name.

    Attributes:
        description: in half a sentence.
        unit: what is read there: per-example gradients, the gradient of a local ``step``, or an ``update``.
        clipped_by: the hooks whose clipping what is read has passed.
        noised_by: the hooks whose noise it has passed too.
    """

    description: str
    unit: Unit
    clipped_by: tuple[Hook, ...]
    noised_by: tuple[Hook, ...]

    def __new__(
        cls, name: str, description: str, unit: Unit, clipped_by: tuple[Hook, ...], noised_by: tuple[Hook, ...]
    ) -> Self:
        """The tap of a name, with its facts."""
        tap = str.__new__(cls, name)
        tap._value_ = name
        tap.description, tap.unit, tap.clipped_by, tap.noised_by = description, unit, clipped_by, noised_by
        return tap

    RAW = "T2.raw", "per-example gradients straight from the loss, before the defense", "example", (), ()
    CLIP = "T2.clip", "per-example gradients after clipping, before noise", "example", _STEP, ()
    EXAMPLES = (
        "T2.examples", "sanitised per-example gradients, where the defense adds noise per example", "example", _STEP,
        _STEP,
    )  # fmt: skip
    STEP = "T2.step", "what local SGD consumes (surface 2)", "step", _STEP, _STEP
    UPDATE = "T1.raw", "the client's update before its outgoing transform", "update", _STEP, _STEP
    SENT = "T1.out", "what leaves the client (surface 1)", "update", _SENT, _SENT
    ARRIVED = (
        "T0.in",
        "what arrives at the server from this client, or of a secure sum: the mean of its clients (surface 0)",
        "update", (*_SENT, Hook.SUM_SECURELY), (*_SENT, Hook.SUM_SECURELY),
    )  # fmt: skip
    RECEIVED = (
        "T0.post", "this client's update after the server's per-client transform", "update",
        (*_SENT, Hook.SUM_SECURELY, Hook.SERVER_RECEIVE), (*_SENT, Hook.SUM_SECURELY, Hook.SERVER_RECEIVE),
    )  # fmt: skip
    PUBLISHED = (
        "T0.agg", "what the server applies: the mean of the round's clients after its noise; visible in the models",
        "update", tuple(Hook), tuple(Hook),
    )  # fmt: skip
    DELTA_Y = (
        "T1.delta_y",
        "SCAFFOLD: the model update, for an attacker without the variates (T1.out: with them)",
        "update", _STEP, _STEP,
    )  # fmt: skip
    DELTA_C = (
        "T1.delta_c",
        "SCAFFOLD: the change of the client's variate, for an attacker without the variate",
        "update",
        _STEP,
        _STEP,
    )

    @property
    def surface(self) -> int | None:
        """The surface number the tap stands for, or None for a tap between surfaces."""
        return next((surface for surface, tap in SURFACES.items() if tap is self), None)

    @property
    def at_server(self) -> bool:
        """Return whether it lies behind what the server makes of several clients' messages."""
        return Hook.SUM_SECURELY in self.clipped_by

    @property
    def of_round(self) -> bool:
        """Return whether it shows nothing of a round but what is made of all its clients' messages."""
        return Hook.AGGREGATE in self.clipped_by

    @property
    def of_update(self) -> bool:
        """Return whether whole updates are read there; else gradients of the first local step."""
        return self.unit == "update"


SURFACES: dict[int, Tap] = {0: Tap.ARRIVED, 1: Tap.SENT, 2: Tap.STEP}

TAPS_OF_VARIATES = (Tap.DELTA_Y, Tap.DELTA_C)
"""Halves of a SCAFFOLD client's message. Who followed the client from the start knows its variate, and sees T1.out."""


def check_tap(tap: str) -> Tap:
    """The tap of a name.

    Raises:
        UsageError: there is no such tap.
    """
    if tap not in set(Tap):
        raise UsageError(f"unknown tap {tap!r}; known taps: {', '.join(Tap)}")
    return Tap(tap)
