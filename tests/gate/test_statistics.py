"""The tests of one cell and Holm's correction: exact values, false-alarm rates and power, printed and asserted."""

import itertools

import numpy as np
import pytest

from harness.gate import comparing
from harness.gate.comparing import fisher_test, paired_test, two_sample_test
from harness.scoring.strongest import holm


def test_the_sign_flip_test_is_the_exact_one() -> None:
    differences = np.array([0.3, -0.1, 0.5, 0.2, 0.4, -0.05, 0.6, 0.25])
    sums = [np.dot(signs, differences) for signs in itertools.product((-1, 1), repeat=8)]
    exact = np.mean([total >= differences.sum() - 1e-9 for total in sums])
    assert paired_test(differences).up == pytest.approx(exact, abs=0.003)
    assert paired_test(-differences).down == pytest.approx(exact, abs=0.003)


def test_the_two_sample_test_is_the_exact_one() -> None:
    old, new = np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.5, 3.5, 5.0, 6.0])
    pooled = np.concatenate([old, new])
    means = [pooled[list(chosen)].mean() for chosen in itertools.combinations(range(8), 4)]
    exact = np.mean([mean >= new.mean() - 1e-9 for mean in means])
    assert two_sample_test(old, new).up == pytest.approx(exact, abs=0.005)


def test_equal_numbers_are_no_evidence() -> None:
    assert paired_test(np.zeros(30)) == two_sample_test(np.ones(30), np.ones(40))
    assert paired_test(np.zeros(30)).up == 1.0


def test_fisher_is_the_textbook_tea_taster() -> None:
    assert fisher_test(1, 4, 3, 4).up == pytest.approx(17 / 70)
    assert fisher_test(1, 4, 3, 4).down == pytest.approx(69 / 70)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.001]) == pytest.approx([0.9, 0.002])
    assert holm([]) == []


def test_p_values_resolve_a_family_of_hundreds() -> None:
    assert paired_test(np.full(30, -1.0)).down < 0.01 / 400
    assert two_sample_test(np.zeros(32), np.ones(32) + np.arange(32)).up < 0.01 / 400


@pytest.mark.parametrize("skewed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_false_alarms_hold_their_rate_and_shifts_are_seen(skewed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At level 0.05, over 400 draws each; a wrong test (Student's, unpaired on pairs) is not what is run here."""
    random, level, draws = np.random.default_rng(5), 0.05, 400
    monkeypatch.setattr(comparing, "_MANY", 9_999)  # those that resolve p-values of 1e-5 decide nothing at 0.05

    def noise(n: int) -> np.ndarray:
        return random.exponential(size=n) if skewed else random.normal(size=n)

    paired = [paired_test(noise(24) - noise(24)).up <= level for _ in range(draws)]
    samples = [two_sample_test(noise(24), noise(32)).up <= level for _ in range(draws)]
    shifted = [paired_test(noise(24) - noise(24) + 1.2).up <= level for _ in range(draws // 2)]
    print(
        f"false alarms: paired {np.mean(paired):.3f}, two samples {np.mean(samples):.3f}; power {np.mean(shifted):.2f}"
    )
    # 400 draws of a rate of 0.05: mean 20, standard deviation 4.4.
    assert max(np.sum(paired), np.sum(samples)) <= 35
    assert min(np.sum(paired), np.sum(samples)) >= 7
    assert np.mean(shifted) >= 0.9


def test_pairing_is_what_sees_a_small_shift_among_very_different_victims() -> None:
    random = np.random.default_rng(6)
    old = random.normal(size=24) * 10
    new = old + 0.3 + 0.1 * random.normal(size=24)
    assert paired_test(new - old).up < 1e-4
    assert two_sample_test(old, new).up > 0.1
