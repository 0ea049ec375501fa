"""Measurements that others took, of operators whose code is elsewhere."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

TABLES = ("imported_batch", "imported_problem", "imported_measurement")
STATUSES = ("ok", "incorrect", "out_of_memory", "timeout", "crashed", "unsupported")


def upgrade() -> None:
    create_batch()
    create_problem()
    create_measurement()
    if op.get_context().dialect.name == "postgresql":
        protect_postgresql()
    else:
        protect_sqlite()


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)  # and with it its triggers


def key_type() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def create(table: str, *parts: sa.schema.SchemaItem) -> None:
    op.create_table(
        table,
        sa.Column("id", key_type(), nullable=False),
        *parts,
        sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
    )


def text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.String(), nullable=False)


def document(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.JSON(none_as_null=True), nullable=False)


def create_batch() -> None:
    create(
        "imported_batch",
        text("operator"),
        text("device"),
        text("source"),
        sa.Column("imported_at", sa.DateTime(timezone=True), nullable=False),
        document("summary"),
        text("digest"),
    )
    op.create_index("ix_imported_batch_operator", "imported_batch", ["operator"])


def create_problem() -> None:
    create(
        "imported_problem",
        text("key"),
        document("values"),
        sa.UniqueConstraint("key", name="uq_imported_problem_key"),
    )


def create_measurement() -> None:
    table = "imported_measurement"
    statuses = ", ".join(repr(status) for status in STATUSES)
    create(
        table,
        text("content_hash"),
        sa.Column("batch_id", key_type(), nullable=False),
        sa.Column("problem_id", key_type(), nullable=False),
        text("implementation"),
        text("status"),
        text("reason"),
        sa.Column("time_ms", sa.Double(), nullable=True),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=True),
        sa.UniqueConstraint("content_hash", name=f"uq_{table}_content_hash"),
        sa.ForeignKeyConstraint(["batch_id"], ["imported_batch.id"], name=f"fk_{table}_batch_id"),
        sa.ForeignKeyConstraint(["problem_id"], ["imported_problem.id"], name=f"fk_{table}_problem_id"),
        sa.CheckConstraint(f"status IN ({statuses})", name=op.f(f"ck_{table}_status")),
        sa.CheckConstraint("(status = 'ok') = (time_ms IS NOT NULL)", name=op.f(f"ck_{table}_timed")),
        sa.CheckConstraint("time_ms > 0", name=op.f(f"ck_{table}_time_ms")),
        sa.CheckConstraint("memory_bytes >= 0", name=op.f(f"ck_{table}_memory_bytes")),
    )
    op.create_index(f"ix_{table}_batch_id", table, ["batch_id"])


def protect_sqlite() -> None:
    for table in TABLES:
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only: {change} refused'); END"
            )


def protect_postgresql() -> None:
    for table in TABLES:
        for change in ("UPDATE", "DELETE", "TRUNCATE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
                "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
            )
