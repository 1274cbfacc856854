"""What a party of the protocol says when it does not go on."""

from harness.base.errors import UsageError


class Refused(UsageError):
    """One message or input is not accepted. The party's state is unchanged: the right message is still welcome."""


class Aborted(UsageError):
    """The protocol ends here for this party, for good. Nothing it held is revealed."""
