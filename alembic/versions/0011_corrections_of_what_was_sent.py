"""Corrections of what somebody sent alone, and counts that tell every further author.

A program of before 0010 that goes on running while its database is upgraded knows one author of a record: its
retractions have no submission, and its releases keep no further author. Triggers refuse both. Those that were
made meanwhile are of the first author, as 0010 took earlier ones, and all counts are taken anew.
"""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

PARTS, DIGITS = 4, 8  # of a content hash in hexadecimal
OLDER = "a program that is older than the database wrote it. Upgrade kernel-selector there, and start it anew"


def same(mine: str, other: str) -> str:
    """Condition that two columns have the same id, or both none; never unknown, so that it can be negated."""
    return f"coalesce({mine}, 0) = coalesce({other}, 0)"


SENT_SO = same("submission_id", "NEW.submission_id")
# condition of a row that goes in, and the words where it does not hold
RULES = {
    "retraction": (
        f"EXISTS (SELECT 1 FROM measurement WHERE id = NEW.measurement_id AND {SENT_SO}) OR "
        f"EXISTS (SELECT 1 FROM authorship WHERE measurement_id = NEW.measurement_id AND {SENT_SO})",
        f"retraction of a measurement as nobody sent it refused: {OLDER}",
    ),
    "release": (
        "EXISTS (SELECT 1 FROM submission WHERE id IN (SELECT submission_id FROM measurement "
        "WHERE id = NEW.measurement_id UNION SELECT submission_id FROM authorship "
        "WHERE measurement_id = NEW.measurement_id) AND author = (SELECT author FROM quarantined "
        "JOIN submission ON submission.id = submission_id WHERE quarantined.id = NEW.quarantined_id))",
        f"release of a measurement without its author refused: {OLDER}",
    ),
}


def upgrade() -> None:
    op.create_index("ix_release_measurement_id", "release", ["measurement_id"])
    give_to_first_authors()
    count_anew("")
    for table, (holds, words) in RULES.items():
        if on_postgresql():
            op.execute(
                f"CREATE FUNCTION {table}_is_of_what_was_sent() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                f"IF {holds} THEN RETURN NEW; END IF; RAISE EXCEPTION USING MESSAGE = '{words}'; END $$"
            )
            op.execute(
                f"CREATE TRIGGER {table}_is_of_what_was_sent BEFORE INSERT ON {table} "
                f"FOR EACH ROW EXECUTE FUNCTION {table}_is_of_what_was_sent()"
            )
        else:
            op.execute(
                f"CREATE TRIGGER {table}_is_of_what_was_sent BEFORE INSERT ON {table} WHEN NOT ({holds}) "
                f"BEGIN SELECT RAISE(ABORT, '{words}'); END"
            )


def downgrade() -> None:
    on = {table: f" ON {table}" if on_postgresql() else "" for table in RULES}
    for table in RULES:
        op.execute(f"DROP TRIGGER {table}_is_of_what_was_sent{on[table]}")
        if on_postgresql():
            op.execute(f"DROP FUNCTION {table}_is_of_what_was_sent()")
    count_anew(" AND authorship.submission_id IS NOT NULL")
    op.drop_index("ix_release_measurement_id", "release")


def on_postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"


def give_to_first_authors() -> None:
    """Retractions that a program of before 0010 made: of what the first author sent."""
    if on_postgresql():
        refuse = "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    else:
        refuse = "BEGIN SELECT RAISE(ABORT, 'retraction is append-only: UPDATE refused'); END"
    op.execute("DROP TRIGGER retraction_no_update" + (" ON retraction" if on_postgresql() else ""))
    op.execute(
        "UPDATE retraction SET submission_id = "
        "(SELECT submission_id FROM measurement WHERE measurement.id = retraction.measurement_id) "
        "WHERE submission_id IS NULL AND NOT EXISTS (SELECT 1 FROM authorship WHERE "
        "authorship.measurement_id = retraction.measurement_id AND authorship.submission_id IS NULL)"
    )
    op.execute(f"CREATE TRIGGER retraction_no_update BEFORE UPDATE ON retraction {refuse}")


def count_anew(which: str) -> None:
    """Counts of all measurements that count.

    The sums of content hashes have those of further authors, but for some by a condition that is added, and
    those of first authors whose part is retracted.
    """
    digests = ", ".join(f"digest_{part}" for part in range(PARTS))
    sums = ", ".join(f"sum({number_of(part)})" for part in range(PARTS))
    effective = "NOT EXISTS (SELECT 1 FROM reversal WHERE retraction_id = retraction.id)"
    first = same("authorship.submission_id", "measurement.submission_id")
    marked = same("authorship.submission_id", "retraction.submission_id")
    of_measurement = "SELECT 1 FROM retraction WHERE retraction.measurement_id"
    stands = f"NOT EXISTS ({of_measurement} = authorship.measurement_id AND {marked} AND {effective})"
    another = f"SELECT 1 FROM authorship WHERE authorship.measurement_id = measurement.id AND {stands}"
    counts = f"NOT EXISTS ({of_measurement} = measurement.id AND {effective}) OR EXISTS ({another})"
    key = "implementation_id, device_id, status"
    op.execute("DELETE FROM tally")
    op.execute(
        f"INSERT INTO tally ({key}, records, last_measured_at, {digests}) "
        f"SELECT {key}, sum(one), max(measured_at), {sums} FROM ("
        f"SELECT {key}, measured_at, content_hash, 1 AS one FROM measurement WHERE {counts} UNION ALL "
        f"SELECT {key}, measured_at, authorship.content_hash, 0 FROM authorship "
        "JOIN measurement ON measurement.id = measurement_id "
        f"WHERE (NOT ({first}) AND {stands}{which}) OR ({first} AND NOT {stands} AND ({counts}))) "
        f"AS counted GROUP BY {key}"
    )


def number_of(part: int) -> str:
    """The value of eight hexadecimal digits of the content hash, which SQLite has to put together itself."""
    start = 1 + DIGITS * part
    if on_postgresql():
        return f"CAST(CAST('x' || substr(content_hash, {start}, {DIGITS}) AS bit(32)) AS bigint)"
    digits = (
        f"((instr('0123456789abcdef', substr(content_hash, {start + place}, 1)) - 1) "
        f"<< {4 * (DIGITS - 1 - place)})"
        for place in range(DIGITS)
    )
    return " + ".join(digits)
