"""Measuring policies: how carefully to measure. The policy's name is part of a record's identity."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..contract import SelectorError
from ..contract.errors import shorten, suggest
from ..contract.record import COMPILED, LAUNCHED

COMPILING = 5.0  # times a stage's limit where Inductor compiles in it, for several calls that differ in kind


class InvalidRegime(SelectorError, ValueError):
    """A regime that nothing is measured in."""


class UnknownPolicy(SelectorError, LookupError):
    """No measuring policy has this name."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Rules of timing: when a candidate has been timed enough, and when it is given up.

    A candidate is done after `max_samples`, once `candidate_budget_ms` are spent on it and it has
    `min_samples`, or once it has four times as many and the standard error of its median is at most
    `relative_spread` of the median. Of runs that take longer than `long_run_ms`, two samples are enough.

    Where `close_samples` are asked for, candidates whose median is within the share `close` of the best
    one's, among which the choice is, go on until they have so many or have spent `close_budget_ms`. Of
    those that take more than `far` times the best one's two samples are enough, and only those within
    `graph_far` times it are captured as CUDA graphs.

    A problem of more time steps than `gate_seq` is judged in full at `gate_seq` of them, with one call of all
    steps against torch's own, and its gate says so.
    Samples are taken in bursts of about `burst_ms` and `burst_samples` at most, one burst of each
    candidate a round, after runs of about `warmup_ms`. Runs of about `lead_ms` come ahead of each burst
    and are not counted: the host has to get ahead of the device, and back into its caches. `timeout_s`
    is the limit of each stage of a candidate (build, gate, memory, each burst). On CPUs torch's threads
    spin only briefly while they wait. With `calling_thread` backward runs in the thread that calls it, as
    its nodes do in a step of a whole network: else each sample wakes autograd's thread of the device.
    `regime` says what is timed, the layer by itself or compiled with neighbours (`neighbours.py`).
    On GPUs the shares of host and device are timed `apart`, and the longer one counts: else small layers
    take the host's time on one problem and the device's on the next.
    Times that were taken under policies of different names are not compared.
    """

    name: str
    min_samples: int
    max_samples: int
    candidate_budget_ms: float
    relative_spread: float
    long_run_ms: float
    warmup_ms: float
    burst_ms: float
    timeout_s: float
    burst_samples: int = 20
    lead_ms: float = 0.0
    close: float = 0.0
    close_samples: int = 0
    close_budget_ms: float = 0.0
    far: float | None = None
    graph_far: float | None = None
    calling_thread: bool = False
    apart: bool = False
    graphs: bool = True  # also capture and time CUDA graphs, where the device has them
    graph_forward: bool = True  # in training too, the forward pass alone
    gate_seq: int | None = None
    regime: str = LAUNCHED

    def in_regime(self, regime: str) -> Policy:
        """The same for another regime: of `compiled`, without graphs, and with the time that compiling takes.

        Raises InvalidRegime.
        """
        if regime == LAUNCHED:
            return self
        if regime != COMPILED:
            raise InvalidRegime(
                f"regime={shorten(regime)}: expected {LAUNCHED} or {COMPILED}. CUDA graphs are timed beside "
                f"what is {LAUNCHED}."
            )
        return replace(self, regime=regime, graphs=False, timeout_s=COMPILING * self.timeout_s)


QUICK = Policy(
    name="quick",
    min_samples=3,
    max_samples=60,
    candidate_budget_ms=60,
    relative_spread=0.02,
    long_run_ms=2_000,
    warmup_ms=3,
    burst_ms=4,
    timeout_s=60,
)

THOROUGH = Policy(
    name="thorough",
    min_samples=8,
    max_samples=400,
    candidate_budget_ms=600,
    relative_spread=0.004,
    long_run_ms=20_000,
    warmup_ms=30,
    burst_ms=10,
    timeout_s=180,
)

# many problems, each with many candidates, within minutes: for comparisons whose figure is a mean over
# problems, and whose candidates differ by more than a few per cent
COMPARE = Policy(
    name="compare",
    min_samples=5,
    max_samples=30,
    candidate_budget_ms=20,
    relative_spread=0.01,
    long_run_ms=60,
    warmup_ms=2,
    burst_ms=8,
    timeout_s=60,
    graph_forward=False,
    gate_seq=1024,
)

# thousands of candidates on a GPU: what a database is filled with. The time goes where the choice is, among
# the fastest of a problem. On an H200 the first run of a burst took 1.3 times the later ones below 1 ms and
# 2.3 times below 0.1 ms, and the second 1.05 to 1.15 times; waking autograd's thread made the same small
# layers, forward and backward, take 0.17 to 0.6 ms from problem to problem; and with a start of 108 us ahead
# of the device, layers that the host takes so long for took 15 us on some and 130 us on others
STEADY = Policy(
    name="steady",
    min_samples=3,
    max_samples=20,
    candidate_budget_ms=6,
    relative_spread=0.01,
    long_run_ms=40,
    warmup_ms=1,
    burst_ms=6,
    timeout_s=60,
    burst_samples=8,
    lead_ms=0.5,
    close=0.12,
    close_samples=40,
    close_budget_ms=200,
    far=3,
    graph_far=6,
    calling_thread=True,
    apart=True,
    graph_forward=False,
    gate_seq=128,
)

# what a cost model learns from: more problems in the time instead of surer times. On an H200 a quarter, a
# half and all of 1,430 swept problems gave choices for new ones that lose 14.3, 9.3 and 5.3 per cent, while
# choosing by half of a sweep's samples loses 0.2
STEADY_SURVEY = replace(
    STEADY,
    name="steady_survey",
    candidate_budget_ms=4,
    close_samples=20,
    close_budget_ms=80,
    far=2.5,
    graphs=False,
)

# the gate and one sample: finds out what works, and leaves compiled kernels in their caches
ONCE = Policy(
    name="once",
    min_samples=1,
    max_samples=1,
    candidate_budget_ms=1,
    relative_spread=1,
    long_run_ms=1,
    warmup_ms=0,
    burst_ms=1,
    timeout_s=90,
    graphs=False,
    gate_seq=50,
)

POLICIES = {policy.name: policy for policy in (QUICK, THOROUGH, COMPARE, STEADY, STEADY_SURVEY, ONCE)}


def policy(name: str) -> Policy:
    """The policy of this name. Raises UnknownPolicy, which lists the known ones."""
    try:
        return POLICIES[name]
    except KeyError:
        raise UnknownPolicy(f"Unknown policy {name!r}. {suggest(name, POLICIES)}") from None
