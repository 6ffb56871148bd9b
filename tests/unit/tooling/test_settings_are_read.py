"""No setting without effect: each key is read somewhere, or its description says that it is not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.infra.settings import Settings
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.runtime.docker.settings import DockerRuntimeSettings
from ai.backend.runtime.process.settings import ProcessRuntimeSettings
from ai.backend.storage.config.settings import StorageSettings
from ai.backend.web.config.settings import WebSettings

SRC = Path(__file__).parents[3] / "src" / "ai" / "backend"
READ_OTHERWISE = {
    "db.type": "one value, which says what the table is",
    "manager.heartbeat_timeout": "translated before the model reads it",
    "manager.rpc_auth_manager_keypair": "translated before the model reads it",
    "artifacts.download_storage": "by the name of the stage",
    "artifacts.verify_storage": "by the name of the stage",
    "artifacts.archive_storage": "by the name of the stage",
}


@dataclass(frozen=True)
class Words:
    """What a source file reads as an attribute, and all names in it."""

    attributes: frozenset[str]
    names: frozenset[str]


@cache
def sources() -> tuple[Words, ...]:
    return tuple(_words(ast.parse(file.read_text(encoding="utf-8"))) for file in sorted(SRC.rglob("*.py")))


def _words(tree: ast.Module) -> Words:
    attributes: set[str] = set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            attributes |= {node.attr, node.attr.removeprefix("_")}
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.alias | ast.ClassDef):
            names.add(node.name)
    return Words(frozenset(attributes), frozenset(names))


def settings_of(model: type[BaseModel], table: str = "") -> Iterator[tuple[type[BaseModel], str, str, FieldInfo]]:
    """Each key with its model and its table, of the tables below as well."""
    for name, field in model.model_fields.items():
        yield model, table, name, field
        for below in _models(field.annotation):
            yield from settings_of(below, name)


def says_that_it_has_none(field: FieldInfo) -> bool:
    """Of a table: each of its keys says so."""
    keys = [key for model in _models(field.annotation) for key in model.model_fields.values()]
    return "not used" in (field.description or "").lower() or (bool(keys) and all(map(says_that_it_has_none, keys)))


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def is_read(model: type[BaseModel], table: str, name: str) -> bool:
    """In a file that has to do with this table: as ``<something>.name`` beside the table's name or its model's."""
    models = {one.__name__ for one in model.__mro__} - {one.__name__ for one in Settings.__mro__}
    return any(
        name in file.attributes and (not table or table in file.attributes or models & file.names) for file in sources()
    )


@pytest.mark.parametrize(
    "model",
    [ManagerSettings, AgentSettings, StorageSettings, WebSettings, ProcessRuntimeSettings, DockerRuntimeSettings],
)
def test_every_setting_has_effect_or_says_that_it_has_none(model: type[BaseModel]) -> None:
    dead = [
        f"{table}.{name}"
        for owner, table, name, field in settings_of(model)
        if not says_that_it_has_none(field)
        and f"{table}.{name}" not in READ_OTHERWISE
        and not is_read(owner, table, name)
    ]
    assert dead == []


def test_a_dead_setting_is_found() -> None:
    class Table(Settings):
        colour_of_the_log: str = ""

    class Whole(Settings):
        logging: Table = Table()

    assert [is_read(owner, table, name) for owner, table, name, _ in settings_of(Whole)] == [True, False]
