"""What ships was measured with code that does what the present code does."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing

from kernel_selector.kernels import registry
from kernel_selector.kernels.versions import holds
from selector.selection.shipped import unpacked

QUERY = """
SELECT implementation.operator, implementation.name, implementation.version, count(*)
FROM measurement JOIN implementation ON implementation.id = measurement.implementation_id GROUP BY 1, 2, 3
"""
# Of measurements that ship, those of earlier code, whose implementations have newer ones as well or whose
# behaviour was changed. A change that alters neither times nor results gets an alias: scripts/alias-versions
EARLIER = {
    "attention/fused": 31,
    "attention/recompute": 36,
    "attention/tempo": 34,
    "attention/warpgroup": 1,
    "feed_forward/from_output": 3,
    "feed_forward/int8_activation": 3,
    "gelu/from_output": 30,
    "gelu/fused": 30,
    "gru/persistent": 38,
    "gru/persistent_graph": 38,
    "gru/persistent_l2": 30,
    "gru/persistent_recompute": 38,
    "linear/persistent": 1,
    "linear/skinny": 11,
    "linear/split_k": 9,
    "linear_cross_entropy/chunked": 30,
    "linear_cross_entropy/gathered": 47,
    "lstm/persistent": 34,
    "lstm/persistent_graph": 39,
    "lstm/persistent_l2": 30,
    "lstm/persistent_recompute": 34,
    "relu/bit_mask": 30,
    "relu/from_output": 30,
    "rnn/fused": 10,
    "rnn/fused_batch_minor": 7,
    "rnn/fused_graph": 10,
    "rnn/persistent": 36,
    "rnn/persistent_graph": 36,
    "rnn/persistent_l2": 36,
    "silu/from_output": 30,
    "silu/fused": 30,
}


def test_nothing_that_ships_became_stale():
    with closing(sqlite3.connect(unpacked())) as database:
        rows = database.execute(QUERY).fetchall()
    stale: Counter[str] = Counter()
    for operator, name, version, count in rows:
        if registry.retirement(operator, name) is not None:
            continue  # kept as what was measured, and never offered
        known = registry.implementations(operator).get(name)
        if not holds(operator, name, version, None if known is None else known.version):
            stale[f"{operator}/{name}"] += count
    assert stale == EARLIER
