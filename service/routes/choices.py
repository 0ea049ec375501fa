"""`/v1/choices`: one question, or many at once.

Answers that were given before come from memory, at once, in the event loop. New ones take some milliseconds,
and now and then a database that has changed is read first: that would hold up all other requests, so it
happens in the thread pool, which alone takes as long as a whole answer from memory. Batches go there at once.
Both wait for their asker's turn.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic_core import to_json

from kernel_selector.kernels.contract import SelectorError
from selector import Choice, Query, Selector

from ..openapi import examples
from ..openapi.document import problem_response
from ..problem_details import document_of
from ..schemas.choices import BatchDocument, BatchRequest, ChoiceDocument, ChooseRequest
from ..strict_json import StrictJsonRoute
from .common import BODY, INTERNAL, UNAVAILABLE, selector_of
from .turns import taking_turn, turn

router = APIRouter(route_class=StrictJsonRoute, tags=["choices"])


@router.post(
    "/v1/choices",
    operation_id="choose",
    summary="Choose an implementation",
    response_description="The choice, what it rests on, and all candidates",
    response_model=ChoiceDocument,
    responses={
        **BODY,
        409: problem_response("A right question without an answer.", examples.problems(409)),
        422: problem_response("The question is wrong.", examples.problems(422)),
        **INTERNAL,
        **UNAVAILABLE,
    },
)
async def choose(
    request: Request, question: Annotated[ChooseRequest, Body(openapi_examples=examples.QUESTIONS)]
) -> Response:
    """The fastest implementation for these hyperparameters, or with `objective` "memory" the smallest."""
    selector = selector_of(request)
    query = question.query(question.device)
    ask = partial(_asked, selector, query)
    if selector.answers_at_once(query):
        choice, answer = ask()
    else:
        async with taking_turn(request):
            choice, answer = await run_in_threadpool(ask)
    request.app.state.metrics.choices([choice])
    # as it is: checking and writing it again would take longer than all the rest
    return Response(answer, media_type="application/json")


def _asked(selector: Selector, query: Query) -> tuple[Choice, bytes]:
    """The choice and its document, for which the first one looks for the most similar of all measurements."""
    choice = selector.answer(query)
    return choice, choice.json


@router.post(
    "/v1/choices:batch",
    operation_id="chooseEach",
    summary="Choose for many layers and devices",
    response_description="A choice, or a problem, for every layer on every device",
    response_model=BatchDocument,
    dependencies=[Depends(turn, scope="function")],
    responses={**BODY, 422: problem_response("The batch is wrong."), **INTERNAL},
)
def choose_each(
    request: Request, batch: Annotated[BatchRequest, Body(openapi_examples=examples.BATCHES)]
) -> Response:
    """What `POST /v1/choices` says of each, from one state of the database; one fault spoils one answer."""
    pairs = [(number, device) for number in range(len(batch.problems)) for device in batch.devices]
    found = selector_of(request).choose_each(batch.queries())
    request.app.state.metrics.choices(found)
    answers = [
        {"problem": number, "device": device, "choice": None, "error": document_of(answer, request.scope)}
        if isinstance(answer, SelectorError)
        else {"problem": number, "device": device, "choice": answer.summary(), "error": None}
        for (number, device), answer in zip(pairs, found, strict=True)
    ]
    # written as they are: checking them against the response's model would take longer than all the rest
    return Response(to_json({"answers": answers}, inf_nan_mode="null"), media_type="application/json")
