"""Tokens of the service; who submitted a measurement; what was set aside instead of stored."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

APPEND_ONLY = ("submission", "quarantined")


def upgrade() -> None:
    create_token()
    create_submission()
    create_quarantined()
    # no foreign key: SQLite would have to write the whole table anew, and neither row can be removed
    op.add_column("measurement", sa.Column("submission_id", sa.BigInteger(), nullable=True))
    if op.get_context().dialect.name == "postgresql":
        protect_postgresql()
    else:
        protect_sqlite()


def downgrade() -> None:
    op.drop_column("measurement", "submission_id")
    for table in ("quarantined", "submission", "token"):
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


def moment(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def create_token() -> None:
    create(
        "token",
        text("name"),
        text("digest"),
        text("scopes"),
        moment("created_at"),
        moment("expires_at", nullable=True),
        moment("revoked_at", nullable=True),
        sa.UniqueConstraint("digest", name="uq_token_digest"),
    )
    op.create_index("ix_token_name", "token", ["name"])


def create_submission() -> None:
    create("submission", text("author"), moment("received_at"))


def create_quarantined() -> None:
    create(
        "quarantined",
        text("content_hash"),
        sa.Column("submission_id", key_type(), nullable=False),
        text("reason"),
        text("record"),
        sa.UniqueConstraint("content_hash", name="uq_quarantined_content_hash"),
        sa.ForeignKeyConstraint(["submission_id"], ["submission.id"], name="fk_quarantined_submission_id"),
    )


def protect_sqlite() -> None:
    for table in APPEND_ONLY:
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only: {change} refused'); END"
            )


def protect_postgresql() -> None:
    for table in APPEND_ONLY:
        for change in ("UPDATE", "DELETE", "TRUNCATE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
                "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
            )
