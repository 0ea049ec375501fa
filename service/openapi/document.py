"""The OpenAPI document: what FastAPI derives, with the operators' hyperparameters and our problems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Boolean, Hyperparameter, Integer, Number, OneOf, Operator

from ..access import FREE, needed_scope
from ..problem_details import MEDIA_TYPE
from ..schemas.errors import FieldProblem, Problem
from .example_answer import ANSWER

CHOOSE = "/v1/choices"
REFERENCE = "#/components/schemas/{model}"


def problem_response(description: str, examples: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """An entry for `responses=` of a route: a problem document, with examples."""
    content: dict[str, Any] = {"schema": {"$ref": REFERENCE.format(model="Problem")}}
    if examples:
        content["examples"] = dict(examples)
    return {"description": description, "content": {MEDIA_TYPE: content}}


def document(app: FastAPI) -> dict[str, Any]:
    """The app's OpenAPI document, made once."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            summary=app.summary,
            description=app.description,
            routes=app.routes,
            tags=app.openapi_tags,
        )
        schemas = made["components"]["schemas"]
        for model in (Problem, FieldProblem):
            schema = model.model_json_schema(ref_template=REFERENCE)
            schema.pop("$defs", None)
            schemas[model.__name__] = schema
        _drop_default_validation(made)
        _add_strictness(made)
        _add_access(made)
        _leave_formats_open(made)
        answer = made["paths"][CHOOSE]["post"]["responses"]["200"]["content"]["application/json"]
        answer["example"] = ANSWER  # here, because get_openapi would drop what is null in it
        kinds = [_operator_schema(operator) for operator in registry.operators().values()]
        schemas["Hyperparameters"] = {"anyOf": kinds}
        for schema in schemas.values():
            fields = schema.get("properties", {})
            if fields.get("hyperparameters", {}).get("type") == "object":
                description = fields["hyperparameters"]["description"]
                reference = REFERENCE.format(model="Hyperparameters")
                fields["hyperparameters"] = {"description": description, "$ref": reference}
        app.openapi_schema = made
    return app.openapi_schema


def _drop_default_validation(made: dict[str, Any]) -> None:
    """Remove the 422 that FastAPI adds to every path with a parameter: ours are problem documents."""
    for path in made["paths"].values():
        for operation in path.values():
            if "application/json" in operation["responses"].get("422", {}).get("content", {}):
                del operation["responses"]["422"]
    for name in ("HTTPValidationError", "ValidationError"):
        made["components"]["schemas"].pop(name, None)


def _add_strictness(made: dict[str, Any]) -> None:
    """What is said to parameters that a path does not have, where nothing else can be wrong."""
    for path, operations in made["paths"].items():
        for operation in operations.values() if path.startswith("/v1/") else ():
            operation["responses"].setdefault("422", problem_response("An unknown parameter in the address."))


def _add_access(made: dict[str, Any]) -> None:
    """Tokens, and what they may be answered; they are checked before a request is one of any path."""
    scheme = {"type": "http", "scheme": "bearer", "description": "`selector token create` makes one."}
    made["components"]["securitySchemes"] = {"token": scheme}
    for path, operations in made["paths"].items():
        for method, operation in operations.items():
            if path not in FREE:
                scope = needed_scope(method.upper(), path)
                # read is free over the loopback interface
                operation["security"] = [{"token": [scope]}, *([{}] if scope == "read" else [])]
                operation["responses"] |= {
                    "401": problem_response("A valid token is needed."),
                    "403": problem_response("The token has not the scope for this."),
                    "429": problem_response("The token asks too often; Retry-After says when again."),
                }


def _leave_formats_open(made: dict[str, Any]) -> None:
    """Where a route documents other JSON than its model's, FastAPI asks for both at once: ask for either."""
    for path in made["paths"].values():
        for operation in path.values():
            content = operation["responses"].get("200", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema", {})
            if "anyOf" in schema:
                schema.pop("$ref", None)


def _operator_schema(operator: Operator) -> dict[str, Any]:
    """The hyperparameters of one operator as a JSON schema. Aliases are accepted but not listed."""
    specs = operator.hyperparameters
    return {
        "title": operator.name,
        "description": operator.title,
        "type": "object",
        "properties": {spec.name: _schema(spec) for spec in specs},
        "required": [spec.name for spec in specs if spec.default is None],
        "additionalProperties": False,
    }


def _schema(spec: Hyperparameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"description": spec.help}
    match spec:
        case Integer():
            schema |= {"type": "integer", "minimum": spec.minimum, "maximum": spec.maximum}
        case Number():
            schema |= {"type": "number", "minimum": spec.minimum, "maximum": spec.maximum}
        case Boolean():
            schema |= {"type": "boolean"}
        case OneOf():
            schema |= {"type": "string", "enum": [*spec.choices, *spec.synonyms]}
    default = spec.default
    if isinstance(default, str) and default.startswith("="):
        schema["description"] += f" (that of {default[1:]} when not given)"
    elif default is not None:
        schema["default"] = default
    return schema
