"""Who stays when some shares did not open: one of the two, sender or receiver, is to blame, and nobody knows which."""

from collections.abc import Mapping, Set


def without_troublemakers(clients: Set[int], unopened: Mapping[int, Set[int]]) -> set[int]:
    """The clients without those who quarrel with several others.

    The client in most complaints, as sender or receiver, leaves until nobody is in more than one. Honest clients have
    no quarrel with each other, so one client that seals garbage, or says so of everybody, goes alone; what it can spoil
    by a single complaint is one share.

    Args:
        unopened: receiver -> the senders whose shares did not open.
    """
    quarrels: dict[int, set[int]] = {client: set() for client in clients}
    for receiver in clients:
        for sender in unopened[receiver] & clients:
            quarrels[receiver].add(sender)
            quarrels[sender].add(receiver)
    left = set(clients)
    while left:
        worst = max(sorted(left), key=lambda client: len(quarrels[client] & left))
        if len(quarrels[worst] & left) < 2:
            break
        left.remove(worst)
    return left
