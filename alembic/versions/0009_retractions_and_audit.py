"""What was done to a database and by whom, what does not count any more, and whose measurements are trusted.

Tokens that were made before are trusted, as those are that are made from now on.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

INDEXES = {"submission": "author", "measurement": "submission_id"}


def upgrade() -> None:
    create_audit()
    create_retraction()
    create_release()
    op.execute("ALTER TABLE token ADD COLUMN trusted BOOLEAN DEFAULT TRUE NOT NULL")
    for table, column in INDEXES.items():
        op.create_index(f"ix_{table}_{column}", table, [column])
    if op.get_context().dialect.name == "postgresql":
        for change in ("UPDATE", "DELETE", "TRUNCATE"):
            op.execute(
                f"CREATE TRIGGER audit_no_{change.lower()} BEFORE {change} ON audit "
                "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
            )
    else:
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER audit_no_{change.lower()} BEFORE {change} ON audit "
                f"BEGIN SELECT RAISE(ABORT, 'audit is append-only: {change} refused'); END"
            )


def downgrade() -> None:
    for table, column in INDEXES.items():
        op.drop_index(f"ix_{table}_{column}", table)
    op.drop_column("token", "trusted")
    for table in ("release", "retraction", "audit"):
        op.drop_table(table)  # and with it its triggers


def number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False)


def create(table: str, *parts: sa.schema.SchemaItem) -> None:
    op.create_table(table, number("id"), *parts, sa.PrimaryKeyConstraint("id", name=f"pk_{table}"))


def reference(table: str, to: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([f"{to}_id"], [f"{to}.id"], name=f"fk_{table}_{to}_id")


def create_audit() -> None:
    create(
        "audit",
        sa.Column("happened_at", sa.DateTime(timezone=True), nullable=False),
        *(
            sa.Column(name, sa.String(), nullable=False)
            for name in ("author", "through", "action", "subject", "reason")
        ),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.CheckConstraint("through IN ('command', 'service')", name=op.f("ck_audit_through")),
    )
    for column in ("author", "action"):
        op.create_index(f"ix_audit_{column}", "audit", [column])


def create_retraction() -> None:
    columns = ("measurement_id", "audit_id")
    create(
        "retraction",
        *map(number, columns),
        reference("retraction", "measurement"),
        reference("retraction", "audit"),
        sa.UniqueConstraint(*columns, name="uq_retraction_measurement_id_audit_id"),
    )
    op.create_index("ix_retraction_audit_id", "retraction", ["audit_id"])


def create_release() -> None:
    columns = ("quarantined_id", "measurement_id", "audit_id")
    create(
        "release",
        *map(number, columns),
        *(reference("release", name.removesuffix("_id")) for name in columns),
        sa.UniqueConstraint("quarantined_id", name="uq_release_quarantined_id"),
    )
    op.create_index("ix_release_audit_id", "release", ["audit_id"])
