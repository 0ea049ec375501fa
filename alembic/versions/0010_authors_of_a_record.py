"""All authors of a record that several have sent, corrections for each of them, and tables that only grow.

A record without rows in `authorship` has the one author that it came with. Retractions and releases are kept
as the journal is: a row of `reversal` takes one back. SQLite's REPLACE removes the row that it conflicts with
and asks no trigger of DELETE: a trigger of INSERT refuses it, in every client of the file.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

PARTS, DIGITS = 4, 8  # of a content hash in hexadecimal
NEW = ("reversal", "authorship", "release", "retraction")  # in the order in which they can be dropped
# what two rows of a table must not share, beside their ids
UNIQUE: dict[str, tuple[tuple[str, ...], ...]] = {
    "environment": (("fingerprint",),),
    "device": (("content_hash",),),
    "problem": (("key",),),
    "implementation": (("operator", "name", "version"),),
    "measurement": (("content_hash",),),
    "submission": (),
    "quarantined": (("content_hash",),),
    "imported_batch": (),
    "imported_problem": (("key",),),
    "imported_measurement": (("content_hash",),),
    "audit": (),
    "retraction": (("measurement_id", "submission_id", "audit_id"),),
    "release": (("quarantined_id", "audit_id"),),
    "reversal": (("retraction_id",), ("release_id",)),
    "authorship": (("content_hash",),),
}


RETRACTION, RELEASE = "measurement_id, audit_id", "quarantined_id, measurement_id, audit_id"
EFFECTIVE = "NOT EXISTS (SELECT 1 FROM reversal WHERE retraction_id = retraction.id)"
# measurements of which an author has a part that nobody retracted
SENT_ELSE = (
    "SELECT authorship.measurement_id FROM authorship WHERE NOT EXISTS (SELECT 1 FROM retraction "
    "WHERE retraction.measurement_id = authorship.measurement_id AND (retraction.submission_id = "
    "authorship.submission_id OR (retraction.submission_id IS NULL AND authorship.submission_id IS NULL)) "
    f"AND {EFFECTIVE})"
)


def upgrade() -> None:
    put_by("retraction", f"SELECT {RETRACTION} FROM retraction ORDER BY id")
    put_by("release", f"SELECT {RELEASE} FROM release ORDER BY id")
    for table in ("retraction", "release"):
        op.drop_table(table)
    create_retraction()
    create_release()
    create_reversal()
    create_authorship()
    op.execute(
        "INSERT INTO retraction (measurement_id, submission_id, audit_id) "
        "SELECT measurement_id, submission_id, audit_id "
        "FROM earlier_retraction JOIN measurement ON measurement.id = measurement_id"
    )
    take_back("release", RELEASE)
    op.drop_table("earlier_retraction")
    if op.get_context().dialect.name == "postgresql":
        protect_postgresql()
    else:
        protect_sqlite()


def downgrade() -> None:
    """Records have one author: those that others sent too count, whoever of their authors was retracted."""
    put_by(
        "retraction",
        f"SELECT DISTINCT {RETRACTION} FROM retraction "
        f"WHERE {EFFECTIVE} AND measurement_id NOT IN ({SENT_ELSE})",
    )
    reversed_too = "EXISTS (SELECT 1 FROM reversal WHERE release_id = release.id)"
    put_by("release", f"SELECT {RELEASE} FROM release WHERE NOT {reversed_too} ORDER BY id")
    for table in NEW:
        op.drop_table(table)  # and with it its triggers
    if op.get_context().dialect.name != "postgresql":
        for table in UNIQUE.keys() - set(NEW):
            op.execute(f"DROP TRIGGER {table}_no_replace")
    create_earlier()
    take_back("retraction", RETRACTION)
    take_back("release", RELEASE)
    count_anew()


def put_by(table: str, query: str) -> None:
    """Keep rows of a table while another takes its place: SQLite cannot change constraints."""
    op.execute(f"CREATE TABLE earlier_{table} AS {query}")


def take_back(table: str, columns: str) -> None:
    op.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM earlier_{table}")
    op.drop_table(f"earlier_{table}")


def number(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=nullable)


def reference(table: str, to: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([f"{to}_id"], [f"{to}.id"], name=f"fk_{table}_{to}_id")


def create(
    table: str, columns: tuple[str, ...], unique: tuple[str, ...], *more: sa.schema.SchemaItem
) -> None:
    """A table of references, of which `submission`, `retraction` and `release` need not be there."""
    optional = {"submission_id", *(("retraction_id", "release_id") if table == "reversal" else ())}
    op.create_table(
        table,
        number("id"),
        *(number(name, nullable=name in optional) for name in columns),
        *more,
        sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
        *(reference(table, name.removesuffix("_id")) for name in columns),
        sa.UniqueConstraint(*unique, name=f"uq_{table}_{'_'.join(unique)}"),
    )


def index(table: str, *columns: str) -> None:
    for column in columns:
        op.create_index(f"ix_{table}_{column}", table, [column])


def create_retraction() -> None:
    columns = ("measurement_id", "submission_id", "audit_id")
    create("retraction", columns, columns)
    index("retraction", "audit_id")


def create_release() -> None:
    create("release", ("quarantined_id", "measurement_id", "audit_id"), ("quarantined_id", "audit_id"))
    index("release", "audit_id")


def create_reversal() -> None:
    create(
        "reversal",
        ("retraction_id", "release_id", "audit_id"),
        ("retraction_id",),
        sa.UniqueConstraint("release_id", name="uq_reversal_release_id"),
        sa.CheckConstraint(
            "(retraction_id IS NULL) <> (release_id IS NULL)", name=op.f("ck_reversal_of_one")
        ),
    )


def create_authorship() -> None:
    columns, unique = ("measurement_id", "submission_id"), ("content_hash",)
    create("authorship", columns, unique, sa.Column("content_hash", sa.String(), nullable=False))
    index("authorship", *columns)


def create_earlier() -> None:
    """The tables of marks as 0009 has them."""
    create("retraction", ("measurement_id", "audit_id"), ("measurement_id", "audit_id"))
    create("release", ("quarantined_id", "measurement_id", "audit_id"), ("quarantined_id",))
    for table in ("retraction", "release"):
        index(table, "audit_id")


def protect_sqlite() -> None:
    for table in NEW:
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only: {change} refused'); END"
            )
    for table, keys in UNIQUE.items():
        there = " OR ".join(
            f"EXISTS (SELECT 1 FROM {table} WHERE "
            + " AND ".join(f'"{column}" = NEW."{column}"' for column in columns)
            + ")"
            for columns in (("id",), *keys)
        )
        op.execute(
            f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} WHEN {there} "
            f"BEGIN SELECT RAISE(ABORT, '{table} is append-only: INSERT of a row that is there refused'); END"
        )


def protect_postgresql() -> None:
    """Its ON CONFLICT DO UPDATE is an UPDATE to triggers."""
    for table in NEW:
        for change in ("UPDATE", "DELETE", "TRUNCATE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
                "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
            )


def count_anew() -> None:
    """Counts without the hashes of authorship that 0010 adds to them."""
    digests = ", ".join(f"digest_{part}" for part in range(PARTS))
    sums = ", ".join(f"sum({number_of(part)})" for part in range(PARTS))
    op.execute("DELETE FROM tally")
    op.execute(
        f"INSERT INTO tally (implementation_id, device_id, status, records, last_measured_at, {digests}) "
        f"SELECT implementation_id, device_id, status, count(*), max(measured_at), {sums} FROM measurement "
        "WHERE NOT EXISTS (SELECT 1 FROM retraction WHERE measurement_id = measurement.id) "
        "GROUP BY implementation_id, device_id, status"
    )


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
