"""The first tables: measurements and what they refer to, append-only, and cost models."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

APPEND_ONLY = ("environment", "device", "problem", "implementation", "measurement")
TIMINGS = ("forward", "forward_backward", "graph_forward", "graph_forward_backward")
MEMORY = ("peak_bytes", "held_bytes", "workspace_bytes")


def upgrade() -> None:
    create_environment()
    create_device()
    create_problem()
    create_implementation()
    create_measurement()
    create_model()
    if op.get_context().dialect.name == "postgresql":
        protect_postgresql()
    else:
        protect_sqlite()


def downgrade() -> None:
    for table in ("model", "measurement", "implementation", "problem", "device", "environment"):
        op.drop_table(table)  # and with it its triggers
    if op.get_context().dialect.name == "postgresql":
        op.execute("DROP FUNCTION refuse_change()")


def key_type() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def create(table: str, *parts: sa.schema.SchemaItem) -> None:
    op.create_table(
        table,
        sa.Column("id", key_type(), nullable=False),
        *parts,
        sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
    )


def text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(), nullable=nullable)


def integer(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def real(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Double(), nullable=True)


def json(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.JSON(none_as_null=True), nullable=nullable)


def moment(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False)


def create_environment() -> None:
    create(
        "environment",
        text("fingerprint"),
        text("python"),
        text("torch"),
        *(text(name, nullable=True) for name in ("triton", "cuda", "cudnn", "driver")),
        integer("threads"),
        text("system"),
        sa.UniqueConstraint("fingerprint", name="uq_environment_fingerprint"),
    )


def create_device() -> None:
    sizes = ("multiprocessors", "memory_bytes", "l2_bytes", "shared_bytes_per_multiprocessor")
    create(
        "device",
        *(text(name) for name in ("content_hash", "fingerprint", "key", "name", "kind", "vendor", "host")),
        json("compute_capability", nullable=True),
        *(integer(name, nullable=True) for name in sizes),
        real("copy_bytes_per_s"),
        json("matmul_flops_per_s"),
        real("launch_us"),
        real("barrier_us"),
        sa.UniqueConstraint("content_hash", name="uq_device_content_hash"),
    )
    op.create_index("ix_device_fingerprint", "device", ["fingerprint"])
    op.create_index("ix_device_key", "device", ["key"])


def create_problem() -> None:
    create(
        "problem",
        text("key"),
        text("operator"),
        text("dtype", nullable=True),
        text("mode", nullable=True),
        json("values"),
        sa.UniqueConstraint("key", name="uq_problem_key"),
    )
    op.create_index("ix_problem_operator", "problem", ["operator"])


def create_implementation() -> None:
    names = ("operator", "name", "version")
    create(
        "implementation",
        *(text(name) for name in names),
        sa.UniqueConstraint(*names, name="uq_implementation_operator_name_version"),
    )


def create_measurement() -> None:
    references = ("problem", "implementation", "device", "environment")
    create(
        "measurement",
        text("content_hash"),
        *(sa.Column(f"{table}_id", key_type(), nullable=False) for table in references),
        text("policy"),
        text("status"),
        text("reason"),
        moment("measured_at"),
        integer("seed"),
        sa.Column("gate_passed", sa.Boolean(), nullable=False),
        real("gate_worst_error_ratio"),
        text("gate_detail"),
        *(column for name in TIMINGS for column in timing_columns(name)),
        *(integer(f"memory_{part}", nullable=True) for part in MEMORY),
        sa.UniqueConstraint("content_hash", name="uq_measurement_content_hash"),
        *(
            sa.ForeignKeyConstraint([f"{table}_id"], [f"{table}.id"], name=f"fk_measurement_{table}_id")
            for table in references
        ),
        *measurement_checks(),
    )
    op.create_index("ix_measurement_problem_id", "measurement", ["problem_id"])
    op.create_index(
        "ix_measurement_device_id_implementation_id", "measurement", ["device_id", "implementation_id"]
    )


def timing_columns(name: str) -> list[sa.schema.SchemaItem]:
    percentiles = [real(f"{name}_{part}") for part in ("p20_ms", "p50_ms", "p80_ms")]
    return [*percentiles, integer(f"{name}_samples", nullable=True), json(f"{name}_raw_ms", nullable=True)]


def measurement_checks() -> list[sa.CheckConstraint]:
    checks = {
        "status": ("status IN ('ok', 'incorrect', 'out_of_memory', 'timeout', 'crashed', 'unsupported')"),
        "reason": "status = 'ok' OR reason <> ''",
        "ok_is_complete": (
            "status <> 'ok' OR (gate_passed AND gate_worst_error_ratio <= 1 "
            "AND memory_peak_bytes IS NOT NULL "
            "AND (forward_p50_ms IS NOT NULL OR forward_backward_p50_ms IS NOT NULL))"
        ),
        "gate_worst_error_ratio": "gate_worst_error_ratio >= 0",
        "memory_complete": (
            "(memory_held_bytes IS NULL) = (memory_peak_bytes IS NULL) "
            "AND (memory_workspace_bytes IS NULL) = (memory_peak_bytes IS NULL)"
        ),
    }
    checks |= {f"memory_{part}": f"memory_{part} >= 0" for part in MEMORY}
    for name in TIMINGS:
        p20, p50, p80, samples = (f"{name}_{part}" for part in ("p20_ms", "p50_ms", "p80_ms", "samples"))
        checks |= {
            f"{name}_complete": (
                f"({p20} IS NULL) = ({p50} IS NULL) AND ({p80} IS NULL) = ({p50} IS NULL) "
                f"AND ({samples} IS NULL) = ({p50} IS NULL)"
            ),
            f"{name}_rising": f"{p20} > 0 AND {p20} <= {p50} AND {p50} <= {p80}",
            f"{name}_samples": f"{samples} >= 1",
        }
    return [sa.CheckConstraint(rule, name=op.f(f"ck_measurement_{name}")) for name, rule in checks.items()]


def create_model() -> None:
    create(
        "model",
        text("operator"),
        text("version"),
        integer("schema"),
        json("manifest"),
        json("evaluation"),
        sa.Column("arrays", sa.LargeBinary(), nullable=False),
        moment("created_at"),
    )
    op.create_index("ix_model_operator", "model", ["operator"])


def protect_sqlite() -> None:
    for table in APPEND_ONLY:
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only: {change} refused'); END"
            )


def protect_postgresql() -> None:
    op.execute(
        "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP; END $$"
    )
    for table in APPEND_ONLY:
        for change in ("UPDATE", "DELETE", "TRUNCATE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
                "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
            )
