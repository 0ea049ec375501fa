"""How long a run takes that nothing disturbs: the mean of the fastest fifth of the samples.

Where not all of them are kept it is the 20th percentile. Measurements may not be changed; this adds to them.
"""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

TIMINGS = ("forward", "forward_backward")
FIFTH = 5
TRIGGER = "measurement_no_update"


def upgrade() -> None:
    is_postgresql = op.get_context().dialect.name == "postgresql"
    for name in TIMINGS:
        kind = "DOUBLE PRECISION" if is_postgresql else "DOUBLE"
        op.execute(f"ALTER TABLE measurement ADD COLUMN {name}_undisturbed_ms {kind}")
    if is_postgresql:
        op.execute(f"ALTER TABLE measurement DISABLE TRIGGER {TRIGGER}")
        fill(
            samples="json_array_elements_text({raw}) AS sample(value)",
            number="CAST(value AS double precision)",
        )
        op.execute(f"ALTER TABLE measurement ENABLE TRIGGER {TRIGGER}")
    else:
        op.execute(f"DROP TRIGGER {TRIGGER}")
        fill(samples="json_each({raw})", number="value")
        op.execute(
            f"CREATE TRIGGER {TRIGGER} BEFORE UPDATE ON measurement "
            "BEGIN SELECT RAISE(ABORT, 'measurement is append-only: UPDATE refused'); END"
        )


def fill(*, samples: str, number: str) -> None:
    """Both columns of all rows; `samples` are rows of a column's list, `number` is one of them."""
    op.execute(f"UPDATE measurement SET {', '.join(filled(name, samples, number) for name in TIMINGS)}")


def filled(name: str, samples: str, number: str) -> str:
    ranked = (
        f"SELECT {number} AS ms, row_number() OVER (ORDER BY {number}) AS place, count(*) OVER () AS samples "
        f"FROM {samples.format(raw=f'{name}_raw_ms')}"
    )
    fastest = f"SELECT avg(ms) FROM ({ranked}) AS ranked WHERE place = 1 OR place <= samples / {FIFTH}"
    return (
        f"{name}_undisturbed_ms = CASE json_array_length({name}_raw_ms) WHEN {name}_samples "
        f"THEN ({fastest}) ELSE {name}_p20_ms END"
    )


def downgrade() -> None:
    for name in TIMINGS:
        op.drop_column("measurement", f"{name}_undisturbed_ms")
