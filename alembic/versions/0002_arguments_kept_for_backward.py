"""Bytes of the arguments that an implementation keeps for backward."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COLUMN = "memory_kept_argument_bytes"


def upgrade() -> None:
    # in words of SQL: Alembic would copy the whole table for a constraint on SQLite, and lose its triggers
    op.execute(
        f"ALTER TABLE measurement ADD COLUMN {COLUMN} BIGINT "
        f"CONSTRAINT ck_measurement_{COLUMN} CHECK ({COLUMN} >= 0)"
    )


def downgrade() -> None:
    op.drop_column("measurement", COLUMN)
