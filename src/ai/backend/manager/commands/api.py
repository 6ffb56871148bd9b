"""`backend.ai mgr api`: what the API is, as documents (spec 03-02)."""

from __future__ import annotations

from pathlib import Path

import click

_output = click.option(
    "-o", "--output", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="A file; unset: print it."
)


def _put(document: str, output: Path | None) -> None:
    if output is None:
        click.echo(document)
    else:
        output.write_text(document.rstrip("\n") + "\n")


@click.group("api")
def api() -> None:
    """What the API is, as documents."""


@api.command("dump-openapi")
@_output
def dump_openapi(output: Path | None) -> None:
    """Print the OpenAPI document of the REST API."""
    from ai.backend.manager.composition.api_reference import openapi_json

    _put(openapi_json(), output)


@api.command("dump-gql-schema")
@_output
def dump_gql_schema(output: Path | None) -> None:
    """Print the schema of the GraphQL API."""
    from ai.backend.manager.composition.api_reference import graphql_definitions

    _put(graphql_definitions() + "\n", output)
