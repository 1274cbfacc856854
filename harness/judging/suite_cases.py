"""The cases of the checks' own check: honest clients of many kinds, and mistakes that federations really make."""

from typing import Any

from harness.judging.capture import Declared
from harness.judging.checks import BUFFERS, LEFT_OUT, ON_GRID
from harness.judging.noise_checks import ANEW, BOUND, ENOUGH, NO_MORE, SHAPE, UNROUNDED
from harness.judging.suite import RATE, Case, Client

_BATCH_NORM = "harness.judging.suite:with_batch_norm"


def suite_cases() -> list[Case]:
    """All of them, honest ones first."""
    return _honest() + _planted()


def _cdp(clip: float = 1.0, sigma: float = 6.0, clipping: str = "whole", **more: Any) -> Declared:
    return Declared(name="fed_cdp", settings={"clip": clip, "sigma": sigma, "clipping": clipping, **more})


def _sdp(clip: float = 1.0, sigma: float = 6.0, steps: int = 1, **more: Any) -> Declared:
    """Clip and noise of a client's whole update, the clip in units of its mean gradient."""
    settings = {"clip": clip * RATE * steps, "sigma": sigma, "clipping": "whole", "noise_at": "client", **more}
    return Declared(name="fed_sdp", settings=settings)


def _opacus(sigma: float = 1.0) -> Declared:
    """As its user declares it, whose batches are drawn."""
    return Declared(name="make_private", settings={"noise_multiplier": sigma, "max_grad_norm": 1.0})


def _named(name: str, **settings: Any) -> Declared:
    return Declared(name=name, settings=settings)


def _pruned_then_noise() -> Declared:
    return _named("pruning+fed_sdp", **{"fed_sdp.noise_at": "client"})


def _secure(**more: Any) -> Declared:
    """A client's share of a secure sum on a grid that float32 can show."""
    grid = {"rotation": False, "bits": 16, "clip": 1.0, "sigma": 4.0, "protocol": "sum"}
    return Declared(name="secagg_ddp", settings=grid | more)


def _honest() -> list[Case]:
    noisy = Client(clip=1.0, deviation=6.0)
    update = Client(clip=1.0, deviation=6.0, of_update=True)
    return [
        Case("one example each", _cdp(), noisy),
        Case("a batch", _cdp(), Client(clip=1.0, deviation=6.0, batch=4)),
        Case("Poisson batches", _cdp(), Client(clip=1.0, deviation=6.0, batch=5, expected=4)),
        Case("several steps", _cdp(), Client(clip=1.0, deviation=6.0, batch=2, steps=4)),
        Case("one client alone", _cdp(), noisy, clients=1),
        Case("24 clients", _cdp(), noisy, clients=24),
        Case("one client in four rounds", _cdp(), noisy, rounds=True),
        Case("clipped per tensor", _cdp(clipping="layer"), Client(clip=1.0, deviation=6.0, per_layer=True)),
        Case("weak noise", _cdp(clip=4, sigma=0.01), Client(clip=4.0, deviation=0.04, batch=2)),
        Case("all of one class", _cdp(sigma=1), Client(clip=1.0, deviation=1.0, batch=8), one_class=True),
        Case("a clip alone", _cdp(clip=0.1, sigma=0), Client(clip=0.1, batch=3)),
        Case("a gradient", _cdp(), noisy, sent_as="gradient"),
        Case("sent in half precision", _cdp(), noisy, sent_as="half"),
        Case("clip and noise of the update", _sdp(steps=2), Client(**_of(update, steps=2))),
        Case("BatchNorm that stays at the client", _sdp(), update, model=_BATCH_NORM),
        Case("noise of the mean", _cdp(convention="mean"), batch=4),
        Case("noise of each example", _cdp(convention="per_example"), batch=4, steps=2),
        Case("every client a share", _sdp(noise_split="share")),
        Case("shared noise on a grid", _secure(), batch=2),
        Case("shared Gaussian noise", _named("secagg_ddp", mechanism="gaussian", mode="paper", protocol="sum")),
        Case("adaptive bound", _named("quantile", sigma=1.5)),
        Case("pruned", _named("pruning", threshold=0.9), batch=4),
        Case("pruned per tensor", _named("pruning", threshold=0.5, mode="layer")),
        Case("pruned, then noise", _pruned_then_noise()),
        Case("convolutions", _cdp(), Client(clip=1.0, deviation=6.0, batch=2), model="lenet"),
        Case("few coordinates", _named("dssgd", share=0.05)),
        Case("nothing declared", _named("none"), Client(batch=3, steps=2)),
        Case("nothing declared, in half precision", _named("none"), Client(batch=2), sent_as="half"),
        Case("momentum, one step", _named("none"), Client(batch=2, momentum=0.9)),
        Case("small last batch", _named("none"), Client(batch=4, steps=3), left=2),
        Case("small last batch under noise", _cdp(), Client(clip=1.0, deviation=6.0, batch=4, steps=2), left=3),
        Case("several epochs", _named("none"), Client(batch=4, steps=2, epochs=2), left=3),
        Case("batches of two sizes", _cdp(sigma=1), Client(clip=1.0, deviation=1.0, batch=4), uneven=True),
        Case("Poisson batches of a size that nobody gave", _opacus(), Client(1.0, 1.0, batch=7, expected=4),
             said={"batch_size": 7, "expected_batch_size": None}),
        Case("Poisson batches of the expected size", _opacus(0.01), Client(1.0, 0.01, batch=7, expected=4),
             said={"batch_size": 4, "expected_batch_size": None}, one_class=True),
        Case("momentum under clip and noise", _sdp(steps=3), Client(**_of(update, steps=3, momentum=0.9))),
        Case("Adam under clip and noise", _sdp(steps=3), Client(**_of(update, steps=3, adam=True))),
        Case("weight decay under weak noise", _sdp(clip=0.5, sigma=0.02, steps=2),
             Client(clip=0.5, deviation=0.01, of_update=True, steps=2, weight_decay=0.5)),
        Case("epochs under clip and noise", _sdp(steps=6), Client(**_of(update, batch=2, steps=3, epochs=2))),
        Case("noise on statistics of BatchNorm too", _sdp(), Client(**_of(update, batch=4, on_buffers=True)),
             model=_BATCH_NORM, train_mode=True),
        Case("clipped here, noise at the server", _sdp(clip=0.5, sigma=0),
             Client(clip=0.5, of_update=True)),
        Case("clip and noise in half precision", _sdp(), update, sent_as="half"),
    ]  # fmt: skip


def _of(client: Client, **changes: Any) -> dict[str, Any]:
    return {**vars(client), **changes}


def _planted() -> list[Case]:
    def wrong(**changes: Any) -> Client:
        return Client(**{"clip": 1.0, "deviation": 6.0, **changes})

    quiet = _cdp(clip=0.1, sigma=0)
    return [
        Case("noise off", _cdp(), wrong(deviation=0.0), ENOUGH),
        Case("noise off, where it would be weak", _cdp(clip=4, sigma=0.002), Client(clip=4.0), ENOUGH),
        Case("a tenth of the noise", _cdp(), wrong(deviation=0.6), ENOUGH),
        Case("divided by the root of the batch", _cdp(), wrong(batch=4, deviation=3.0), ENOUGH),
        Case("divided by the batch twice", _cdp(), wrong(batch=4, deviation=1.5), ENOUGH),
        Case("noise of a sum on the mean", _cdp(), wrong(batch=4, deviation=24.0), NO_MORE),
        Case("the learning rate once more", _sdp(), wrong(deviation=6.0 * RATE, of_update=True), ENOUGH),
        Case("a share where all is declared", _sdp(), _sdp(noise_split="share"), ENOUGH),
        Case("defended at the server only", _sdp(), Client(), ENOUGH),
        Case("only the last layer", _cdp(), wrong(noisy="last"), ENOUGH),
        Case("only the first layer", _cdp(), wrong(noisy="first"), ENOUGH),
        Case("biases left out", _cdp(), wrong(noisy="weights"), ENOUGH),
        Case("noise before the clip", _cdp(), wrong(noise_before_clip=True), ENOUGH),
        Case("Laplace noise of the same level", _cdp(), wrong(law="laplace"), SHAPE),
        Case("tosses of a sign of the same level", _cdp(), wrong(batch=4, law="signs"), SHAPE),
        Case("uniform noise of the same level", _sdp(), wrong(of_update=True, law="uniform"), SHAPE, clients=1),
        Case("the same noise in all clients", _cdp(), wrong(draws="shared"), ANEW),
        Case("the same noise in all rounds", _cdp(), wrong(draws="shared"), ANEW, rounds=True),
        Case("the same noise in all tensors", _cdp(), wrong(draws="each tensor"), ANEW, clients=1),
        Case("the same noise in all steps", _cdp(), wrong(draws="each step", steps=4), NO_MORE),
        Case("ten times the clip, and its noise", _cdp(), wrong(clip=10.0, deviation=60.0), NO_MORE),
        Case("ten times the clip", quiet, Client(clip=1.0), BOUND),
        Case("no clip", _cdp(clip=0.1, sigma=0.01), Client(clip=1e9, deviation=0.001), BOUND),
        Case("clipped per tensor, not as a whole", quiet, Client(clip=0.1, per_layer=True), BOUND),
        Case("rounded in the place of noise", _cdp(), Client(clip=1.0, rounded=1.0), ENOUGH),
        Case("rounded behind its noise, and not declared", _cdp(), wrong(rounded=2.0), UNROUNDED),
        Case("statistics of BatchNorm sent raw", _sdp(), wrong(batch=4, of_update=True), BUFFERS, model=_BATCH_NORM,
             train_mode=True),
        Case("half pruned, nine tenths declared", _named("pruning", threshold=0.9),
             _named("pruning", threshold=0.5), LEFT_OUT),
        Case("pruned, and its noise off", _pruned_then_noise(), _named("pruning", threshold=0.9), ENOUGH),
        Case("a tenth sent, a hundredth declared", _named("dssgd", share=0.01), _named("dssgd", share=0.1), LEFT_OUT),
        Case("no integers", _secure(), _named("fed_cdp", clip=1.0, sigma=1.3, clipping="whole"), ON_GRID),
    ]  # fmt: skip
