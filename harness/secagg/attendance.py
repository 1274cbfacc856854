"""Who is there in each round, and whether enough of them hold everybody's shares."""

from harness.secagg.complaints import without_troublemakers
from harness.secagg.errors import Aborted, Refused
from harness.secagg.graph import connected
from harness.secagg.session import Session
from harness.secagg.wire import Kind, rounds


class Attendance:
    """The server's list.

    Attributes:
        rounds: the kinds of the clients' messages, in order.
        present: kind -> the clients whose message was taken.
        opened: holder -> the owners whose shares it has.
    """

    def __init__(self, session: Session) -> None:
        self.session, self.rounds = session, rounds(session)
        self.present: dict[Kind, set[int]] = {kind: set() for kind in self.rounds}
        self.opened: dict[int, frozenset[int]] = {}

    @property
    def members(self) -> set[int]:
        """All with whom masks are shared, known from the end of RECEIPTS."""
        return self.present[Kind.RECEIPTS]

    def require_due(self, kind: Kind, client: int) -> None:
        """Raises Refused if the client has sent this message, or did not send the one before."""
        if client in self.present[kind]:
            raise Refused(f"client {client} has already sent its {kind.name}; the first message counts")
        if kind is not Kind.KEYS and client not in self.present[self.rounds[self.rounds.index(kind) - 1]]:
            raise Refused(f"client {client} dropped out in an earlier round and cannot come back")

    def settle_members(self) -> None:
        """Leaves out who sealed garbage, or says that others did."""
        delivered = self.present[Kind.SHARES]
        unopened = {
            client: (self.session.holders(client) & delivered) - opened for client, opened in self.opened.items()
        }
        self.present[Kind.RECEIPTS] = without_troublemakers(self.members, unopened)

    def require_enough(self, kind: Kind) -> None:
        """Raises Aborted unless everybody whose secrets may be needed has enough holders of its shares."""
        present, session = self.present[kind], self.session
        if len(present) < session.minimum_clients:
            _abort(f"{len(present)} of {session.clients} clients are left, {session.minimum_clients} are needed")
        # A sum needs the shares of all members, whether they stayed or not.
        for owner in sorted(present if kind in (Kind.KEYS, Kind.SHARES) else self.members):
            able = session.holders(owner) & present
            holders = sum(owner in self.opened.get(client, (owner,)) for client in able)
            if holders < session.threshold:
                _abort(f"client {owner} has {holders} holders of its shares left, {session.threshold} are needed")
        if kind is Kind.MASKED and not connected(session.graph, present):
            _abort("the clients left do not hang together, so their sum would fall apart into sums of parts")


def _abort(why: str) -> None:
    raise Aborted(f"secure aggregation ends without a sum: {why}")
