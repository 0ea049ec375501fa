"""The gate and the regime of a measurement, its shares of device and host, and its source.

Absent fields mean what all records were before: the first gate, launched one by one, measured here.
"""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

CHECKS = {
    "gate_revision": "gate_revision >= 1",
    "regime": "regime IN ('launched', 'graph', 'compiled')",
    "device_ms": "device_ms >= 0",
    "host_ms": "host_ms >= 0",
}


def upgrade() -> None:
    is_postgresql = op.get_context().dialect.name == "postgresql"
    number = "DOUBLE PRECISION" if is_postgresql else "DOUBLE"
    kinds = {
        "gate_revision": "BIGINT",
        "regime": "VARCHAR",
        "device_ms": number,
        "host_ms": number,
        "source": "VARCHAR",
    }
    for name, kind in kinds.items():
        # in words of SQL: Alembic would copy the table for a constraint on SQLite, and lose its triggers
        check = f" CONSTRAINT ck_measurement_{name} CHECK ({CHECKS[name]})" if name in CHECKS else ""
        op.execute(f"ALTER TABLE measurement ADD COLUMN {name} {kind}{check}")


def downgrade() -> None:
    for name in (*CHECKS, "source"):
        op.drop_column("measurement", name)
