"""How many measurements there are of what, so that nobody has to read them to know."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

PARTS, DIGITS = 4, 8  # of a content hash in hexadecimal


def upgrade() -> None:
    key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    references = ("implementation", "device")
    op.create_table(
        "tally",
        sa.Column("id", key, nullable=False),
        *(sa.Column(f"{table}_id", key, nullable=False) for table in references),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("last_measured_at", sa.DateTime(timezone=True), nullable=False),
        *(sa.Column(f"digest_{part}", sa.BigInteger(), nullable=False) for part in range(PARTS)),
        sa.PrimaryKeyConstraint("id", name="pk_tally"),
        *(
            sa.ForeignKeyConstraint([f"{table}_id"], [f"{table}.id"], name=f"fk_tally_{table}_id")
            for table in references
        ),
        sa.UniqueConstraint(
            "implementation_id", "device_id", "status", name="uq_tally_implementation_id_device_id_status"
        ),
    )
    digests = ", ".join(f"digest_{part}" for part in range(PARTS))
    sums = ", ".join(f"sum({number_of(part)})" for part in range(PARTS))
    op.execute(
        f"INSERT INTO tally (implementation_id, device_id, status, records, last_measured_at, {digests}) "
        f"SELECT implementation_id, device_id, status, count(*), max(measured_at), {sums} "
        "FROM measurement GROUP BY implementation_id, device_id, status"
    )


def downgrade() -> None:
    op.drop_table("tally")


def number_of(part: int) -> str:
    """The value of eight hexadecimal digits of the content hash, which SQLite has to put together itself."""
    start = 1 + DIGITS * part
    if op.get_context().dialect.name == "postgresql":
        return f"CAST(CAST('x' || substr(content_hash, {start}, {DIGITS}) AS bit(32)) AS bigint)"
    digits = (
        f"((instr('0123456789abcdef', substr(content_hash, {start + place}, 1)) - 1) "
        f"<< {4 * (DIGITS - 1 - place)})"
        for place in range(DIGITS)
    )
    return " + ".join(digits)
