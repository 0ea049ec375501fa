"""`selector jobs`: what workers have to measure."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .terminal import output, words
from .terminal.options import AgainOption, DatabaseOption, JsonOption, PolicyOption

app = typer.Typer(
    name="jobs",
    help="Queue problems for workers to measure, and see how far they are.",
    no_args_is_help=True,
)
Number = Annotated[int, typer.Argument(metavar="NUMBER", min=1, max=2**63 - 1, help="Of the job.")]
DevicesOption = Annotated[
    list[str],
    typer.Option(
        "--device",
        metavar="NAME",
        help="cpu or cuda for any of the kind, or a device by name; give several.",
    ),
]
What = Annotated[
    list[str],
    typer.Argument(
        metavar="[OPERATOR] NAME=VALUE[,VALUE...]...",
        help="The operator and its hyperparameters; commas make a grid.",
        show_default=False,
    ),
]
CountOption = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, max=100_000, help="Draw so many random problems; the given values stay fixed."
    ),
]


@app.command()
def create(
    what: What,
    device: DevicesOption,
    count: CountOption = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the random problems.")] = 0,
    policy: PolicyOption = "quick",
    attempts: Annotated[int, typer.Option(metavar="N", help="How often a task is tried.")] = 3,
    again: AgainOption = False,
    key: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The same key again gives the same job, no second one.")
    ] = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Queue every problem on every device. `selector worker` measures them.

    Examples:

    \b
      selector jobs create lstm hidden=64,128,256 batch=8,32 --device cpu
      selector jobs create lstm --count 200 --device h200 --device nvidia-a100-sxm4-80gb
    """
    from kernel_selector.db.audit import account

    from ..fleet.jobs import JobRequest, create_job

    operator, problems = drawn(what, device, count=count, seed=seed)
    request = JobRequest(
        operator=operator,
        problems=problems,
        devices=device,
        policy=policy,
        again=again,
        max_attempts=attempts,
        idempotency_key=key,
    )
    print_job(create_job(database, request, author=account())[0], as_json=as_json)


@app.command(name="list")
def list_all(database: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """List all jobs, the oldest first.

    Examples:

    \b
      selector jobs list
      selector jobs list --json
    """
    from ..jobs import list_jobs

    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while not found or cursor:
        page = list_jobs(database, cursor=cursor)
        found += page.items
        cursor = page.next
        if not page.items:
            break
    if as_json:
        output.print_json({"jobs": found})
        return
    table = output.table("job", "state", "operator", "devices", "done", "of", numbers=("job", "done", "of"))
    for job in found:
        total = sum(job["tasks"].values())
        done = job["tasks"]["done"]
        table.add_row(
            str(job["id"]), job["state"], job["operator"], ", ".join(job["devices"]), str(done), str(total)
        )
    output.out().print(table if found else "There are no jobs: `selector jobs create` makes one.")


@app.command()
def show(number: Number, database: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """Show a job: how many of its tasks are in which state, and why some failed.

    Examples:

    \b
      selector jobs show 7
      selector jobs show 7 --json
    """
    from ..fleet.jobs import get_job

    print_job(get_job(database, number), as_json=as_json)


@app.command()
def cancel(number: Number, database: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """End what has not ended of a job. What was measured stays.

    Examples:

    \b
      selector jobs cancel 7
    """
    from kernel_selector.db.audit import account

    from ..fleet.jobs import cancel_job

    print_job(cancel_job(database, number, author=account()), as_json=as_json)


def drawn(what: list[str], devices: list[str], *, count: int | None, seed: int) -> tuple[str, list[Any]]:
    """The operator and the problems: a grid, or so many random ones from the ranges for a kind of device."""
    from selector.workloads.sampling import grid, random_problems

    name, given = words.split(what)
    operator = name or "lstm"
    if count is None:
        return operator, grid(operator, given)
    kind = "cpu" if set(devices) == {"cpu"} else "cuda"
    return operator, random_problems(operator, kind, count=count, seed=seed, fixed=given)


def print_job(job: dict[str, Any], *, as_json: bool) -> None:
    """A job, in words or as JSON."""
    if as_json:
        output.print_json(job)
        return
    console = output.out()
    tasks = ", ".join(f"{number} {state}" for state, number in job["tasks"].items() if number)
    console.print(
        f"Job {job['id']}: {job['state']}; {job['operator']} on {', '.join(job['devices'])}; "
        f"{output.number_of(sum(job['tasks'].values()), 'task')}: {tasks}; {job['records']} records",
        soft_wrap=True,
    )
    for reason in job["reasons"]:
        console.print(f"  {reason}", markup=False, soft_wrap=True)
