"""The examples of the OpenAPI document, and the document as it is committed.

`python -m kernel_selector.service.openapi > docs/openapi.json` writes it.
"""
