"""Task queue behind a REST service, for workers with a URL and a token and no database."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kernel_selector.kernels.contract import Record
from selector.errors import ServiceError, ServiceUnavailable
from selector.selection.client import Client

from .queue import Assignment, ClaimAnswer, Claimant

LOST = "task-lost"
CLAIM, HEARTBEAT, FINISH = (f"/v1/profiling-tasks:{verb}" for verb in ("claim", "heartbeat", "finish"))


class ServiceQueue:
    """Task queue of the service that a client asks; its token needs the scope `measure`."""

    passing: tuple[type[Exception], ...] = (ServiceUnavailable,)

    def __init__(self, client: Client) -> None:
        self._client = client

    def claim(self, claimant: Claimant) -> ClaimAnswer:
        """See Queue."""
        question = {
            "worker": claimant.name,
            "device": claimant.device.to_dict(),
            "environment": claimant.environment.to_dict(),
            "lease_s": float(claimant.lease_s),
        }
        answer = self._client.ask("POST", CLAIM, question)
        found = answer["assignment"]
        return ClaimAnswer(
            assignment=None if found is None else Assignment.from_dict(found), pending=answer["pending"]
        )

    def renew(self, assignment: Assignment) -> None:
        """See Queue."""
        self._ask(HEARTBEAT, assignment)

    def end(
        self, assignment: Assignment, outcome: str, records: Sequence[Record] = (), reason: str = ""
    ) -> None:
        """See Queue."""
        documents = [json.loads(record.to_json()) for record in records]
        self._ask(FINISH, assignment, outcome=outcome, reason=reason, records=documents)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _ask(self, path: str, assignment: Assignment, **more: Any) -> None:
        from kernel_selector.db import TaskLost

        try:
            self._client.ask("POST", path, {"task": assignment.task, "lease": assignment.lease, **more})
        except ServiceError as error:
            if error.kind == LOST:
                raise TaskLost(str(error)) from error
            raise
