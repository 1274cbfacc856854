"""Statements that several defenses share: noise on a sum of clipped updates, and noise inside every local step."""

from harness.federation.privacy_facts import PrivacyFacts
from harness.privacy import Statement, client_views, example_views, make_statement


def central_statements(facts: PrivacyFacts, sigma: float, why: str) -> list[Statement]:
    """Client-level statements where whole updates are clipped and the server adds noise to their sum.

    Args:
        facts: the run.
        sigma: noise multiplier over the clipping bound; 0 gives no guarantee.
        why: what the guarantee rests on, in a few words.
    """
    if sigma == 0:
        return [make_statement("server", "none", "clipping without noise gives no epsilon", unit="client")]
    claimed, schedule = facts.claimed_for_clients(sigma), f"sigma={sigma:g}"
    public = [view for view in client_views(facts.clients(sigma, "whole")) if view.name != "server"]
    covered = [
        make_statement(
            view.name, "client-DP central", f"{why}; {view.note}", actual=view.event, claimed=claimed,
            delta=facts.delta, unit="client", schedule=schedule,
        )
        for view in public
    ]  # fmt: skip
    seen = "the server receives every update without noise"
    server = make_statement(
        "server", "none", seen, claimed=claimed, delta=facts.delta, unit="client", schedule=schedule
    )
    return [covered[0], server, *covered[1:]]


def adaptive_step_statements(facts: PrivacyFacts, sigma: float, why: str) -> list[Statement]:
    """Example-level statements for local steps whose bound adapts: in every view a client's own noise alone counts.

    The sum over clients hides more only where all add the same noise; here each client's follows its own bound.
    """
    if sigma == 0:
        return [make_statement("server", "none", "clipping without noise gives no epsilon", unit="example")]
    claimed = facts.claimed_for_examples([sigma])
    return [
        make_statement(
            view.name, "sample-DP local view" if view.name == "server" else "sample-DP",
            f"{why}; {view.note}; clients as units are not covered", actual=view.event, claimed=claimed,
            delta=facts.delta, unit="example", schedule=f"sigma={sigma:g}",
        )
        for view in example_views(facts.examples(sigma, "whole"), uneven="with a bound of each client's own")
    ]  # fmt: skip
