"""Implements `backend.ai mgr api`, which prints documents that describe the API (spec 03-02)."""

from __future__ import annotations

from pathlib import Path

import click

from ai.backend.manager.commands.running import output_option, write_text


@click.group("api")
def api() -> None:
    """Print documents that describe the API."""


@api.command("dump-openapi")
@output_option
def dump_openapi(output: Path | None) -> None:
    """Print the OpenAPI document of the REST API."""
    from ai.backend.manager.composition.api_reference import openapi_json

    write_text(openapi_json(), output)


@api.command("dump-gql-schema")
@output_option
def dump_gql_schema(output: Path | None) -> None:
    """Print the schema of the GraphQL API; `dump-graphql-schema` is the same (spec 03-13:33)."""
    from ai.backend.manager.composition.api_reference import graphql_definitions

    write_text(graphql_definitions() + "\n", output)


api.add_command(dump_gql_schema, "dump-graphql-schema")
