"""Profiling jobs and their tasks, which workers claim for a while."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_job()
    create_task()


def downgrade() -> None:
    op.drop_table("task")
    op.drop_table("job")


def key_type() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def column(name: str, kind: sa.types.TypeEngine[Any], *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=nullable)


def create_job() -> None:
    op.create_table(
        "job",
        column("id", key_type()),
        column("author", sa.String()),
        column("idempotency_key", sa.String(), nullable=True),
        column("content_hash", sa.String()),
        column("operator", sa.String()),
        column("policy", sa.String()),
        column("implementations", sa.JSON(none_as_null=True), nullable=True),
        column("again", sa.Boolean()),
        column("created_s", sa.Double()),
        sa.PrimaryKeyConstraint("id", name="pk_job"),
        sa.UniqueConstraint("author", "idempotency_key", name="uq_job_author_idempotency_key"),
    )


def create_task() -> None:
    op.create_table(
        "task",
        column("id", key_type()),
        column("job_id", key_type()),
        column("device", sa.String()),
        column("problem_key", sa.String()),
        column("values", sa.JSON(none_as_null=True)),
        column("state", sa.String()),
        column("attempts", sa.BigInteger()),
        column("max_attempts", sa.BigInteger()),
        column("expiries", sa.BigInteger()),
        column("reason", sa.String()),
        column("owner", sa.String(), nullable=True),
        column("lease", sa.String(), nullable=True),
        column("lease_s", sa.Double(), nullable=True),
        column("renewed_s", sa.Double(), nullable=True),
        column("finished_s", sa.Double(), nullable=True),
        column("records", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_task"),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_task_job_id"),
        sa.UniqueConstraint("job_id", "device", "problem_key", name="uq_task_job_id_device_problem_key"),
        *checks(),
    )
    op.create_index("ix_task_device_state_attempts_id", "task", ["device", "state", "attempts", "id"])
    op.create_index("ix_task_state", "task", ["state"])


def checks() -> list[sa.CheckConstraint]:
    rules = {
        "state": "state IN ('queued', 'running', 'done', 'failed', 'cancelled')",
        "attempts": "attempts >= 0 AND attempts <= max_attempts",
        "lease": "state <> 'running' OR (lease IS NOT NULL AND renewed_s IS NOT NULL)",
        "reason": "state <> 'failed' OR reason <> ''",
    }
    return [sa.CheckConstraint(rule, name=op.f(f"ck_task_{name}")) for name, rule in rules.items()]
