"""What an audit tests: a defense's own statement for the run that is audited."""

from dataclasses import dataclass, fields, replace

from harness.audit.settings import AuditSettings, Unit
from harness.base.errors import UsageError
from harness.defenses import Defense, PrivacyFacts
from harness.privacy import Statement


@dataclass(frozen=True)
class Claim:
    """One statement to test.

    Attributes:
        unit: what a canary is.
        statement: of one view; its epsilon, if there is one, is what holds for the run as configured.
        claimed: the epsilon claimed by the paper's convention, or named by the auditor; None where nobody claims one.
        note: where ``claimed`` comes from, if not from the statement.
    """

    unit: Unit
    statement: Statement
    claimed: float | None
    note: str = ""

    def verdict(self, bound: float) -> str:
        """What a lower bound on epsilon says of it."""
        if self.statement.epsilon is not None and bound > self.statement.epsilon:
            return "violates its guarantee"
        if self.claimed is not None and bound > self.claimed:
            return "violates its claim"
        return "claims nothing" if self.statement.epsilon is None and self.claimed is None else "consistent"


def unit_of(defense: Defense, settings: AuditSettings) -> Unit:
    """What the defense says it protects; examples where it says nothing.

    Raises:
        UsageError: clients, whose number a setting for examples names too.
    """
    stated = [statement.unit for statement in defense.statements(settings.facts("example", 1))]
    if "client" not in stated:
        return "example"
    if settings.clients_per_round > 1:
        raise UsageError(
            f"{settings.defense} protects clients, of which every canary is one; drop --clients-per-round and set "
            "--canaries, --others and --sampling-rate"
        )
    return "client"


def claim_of(defense: Defense, settings: AuditSettings, unit: Unit, facts: PrivacyFacts) -> Claim:
    """The statement for the asked view, else for the strongest view that the statements are about.

    Example-level statements of other views follow from the server's, which sees every local step, or the sum of several
    clients where no more reaches it; without a secure sum it is third parties who see no more. What is claimed for
    clients without a guarantee is claimed of the published model.
    """
    stated = defense.statements(facts)
    statements = {statement.view: statement for statement in stated if statement.unit in (unit, None)}
    covers_server = "server" in statements and statements["server"].guarantee != "none"
    closest = "third party" if settings.sums and not defense.sums_securely else "server"
    view = settings.view or (closest if unit == "example" or covers_server else "third party")
    # A defense without any guarantee says so once, for all views.
    statement = statements.get(view) or replace(next(iter(statements.values())), view=view)
    if settings.claimed_epsilon is not None:
        return Claim(unit, statement, settings.claimed_epsilon, "claimed epsilon as named")
    if statement.claimed_epsilon is None and getattr(defense, "sigma", None) == 0:
        return _claim_with_noise(defense, unit, statement, facts)
    return Claim(unit, statement, statement.claimed_epsilon)


def _claim_with_noise(defense: Defense, unit: Unit, statement: Statement, facts: PrivacyFacts) -> Claim:
    """Noise switched off: what the same defense claims at the paper's sigma is what nobody may believe any more."""
    (default,) = (field.default for field in fields(defense) if field.name == "sigma")
    usual = replace(defense, sigma=getattr(default, "default", default))
    (claimed, *_) = (other.claimed_epsilon for other in usual.statements(facts))
    return Claim(unit, statement, claimed, f"claimed for {usual.statements(facts)[0].schedule}, run without noise")
