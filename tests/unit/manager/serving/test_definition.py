"""Model definitions and runtime variants: what a replica runs, and what is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.common.errors import InvalidInput
from ai.backend.manager.serving.definition import (
    MAX_DEFINITION_BYTES,
    read_definition,
    runtime_variants,
    variant_named,
    variant_service,
)
from ai.backend.manager.serving.model import ServedModel, port_of, with_port
from tests.unit.manager.serving.world import ENDPOINT

SERVICE = "models: [{name: m, service: {start_command: %s}}]"
BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nmodels: [*b, *b]"


def read(text: str | bytes, name: str | None = None) -> ServedModel:
    content = text.encode() if isinstance(text, str) else text
    return read_definition(content, file="model-definition.yaml", mount_destination="/models", name=name)


def test_the_example_is_read() -> None:
    example = Path(__file__).parents[4] / "docs" / "examples" / "embedding-model" / "model-definition.yaml"
    served = read(example.read_bytes())
    assert (served.name, served.path, served.port) == ("tiny-embedding", "/models", None)
    assert (served.health.path, served.health.interval, served.health.max_retries) == ("/health", 2.0, 3)


def test_defaults_are_those_of_the_published_platform() -> None:
    health = read(SERVICE % "serve").health
    expected = ("/health", 10.0, 10, 15.0, 200, 60.0)
    assert (
        health.path,
        health.interval,
        health.max_retries,
        health.max_wait_time,
        health.expected_status_code,
        health.initial_delay,
    ) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "object"),
        ("models: []", "length >= 1"),
        ("models: [{name: m}]", "no `service`"),
        ("models: [{name: m, service: {}}]", "start_command"),
        ("models: [{name: m, service: {start_command: x, prot: 8000}}]", "prot"),
        ("models: [{name: m, service: {start_command: x, port: 80}}]", ">= 1024"),
        ("models: [{name: m, service: {start_command: x, health_check: {path: no}}}]", "health_check"),
        ('models: [{name: m, service: {start_command: x, health_check: {path: "/\\r\\nX: y"}}}]', "health_check"),
        ("models: [{name: m, model_path: /etc, service: {start_command: x}}]", "not inside"),
        ("models: [{name: m, model_path: /models/../etc, service: {start_command: x}}]", "not inside"),
        ("models: [{name: a, service: {start_command: x}}, {name: b, service: {start_command: x}}]", "2 models"),
        ("models: [{name: a, service: {start_command: x}}, {name: a, service: {start_command: y}}]", "same name"),
        (BOMB, "alias"),
        ("models: !!python/object/apply:os.system [echo]", "constructor"),
        ("models: !!timestamp x", "no YAML"),
        ("models: !!float " + ":".join(["1"] * 20_000), "no YAML"),
        ("models: " + "9" * 5_000, "no YAML"),
        ("[" * 40, "deeply"),
        ("models: [", "in line"),
        ('models: [{name: m, service: {start_command: "a\\0b"}}]', "NUL"),
    ],
)
def test_a_wrong_definition_names_the_file_and_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(text)
    assert "model-definition.yaml" in caught.value.message
    assert reason in caught.value.message, caught.value.message


def test_a_large_or_binary_definition_is_refused() -> None:
    for content in (b"x" * (MAX_DEFINITION_BYTES + 1), b"\xff\xfe\x00", b"models: \x00"):
        with pytest.raises(InvalidInput):
            read(content)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    try:
        read(content)
    except InvalidInput:
        pass


def test_actions_run_in_order_and_words_stay_words(tmp_path: Path) -> None:
    made, hostile = tmp_path / "a b", "$(touch pwned); 'x"
    served = read(
        f"""
models:
- name: m
  service:
    pre_start_actions:
    - {{action: mkdir, args: {{path: "{made}"}}}}
    - {{action: write_file, args: {{filename: "{made}/f", body: [one, two]}}}}
    - {{action: run_command, args: {{command: [cp, "{made}/f", "{made}/g"]}}}}
    start_command: [printf, "%s|", "{hostile}", "{{port}}"]
"""
    )
    done = subprocess.run(
        ["sh", "-c", with_port(served.command, 8123)], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert done.stdout == f"{hostile}|8123|"
    assert (made / "g").read_text() == "one\ntwo\n"
    assert not (tmp_path / "pwned").exists()


def test_a_failed_action_starts_no_server(tmp_path: Path) -> None:
    actions = "[{action: run_command, args: {command: ['false']}}]"
    served = read(f"models: [{{name: m, service: {{pre_start_actions: {actions}, start_command: echo served}}}}]")
    done = subprocess.run(["sh", "-c", served.command], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout) == (1, "")


def test_every_variant_gives_a_command_with_its_model() -> None:
    for name, variant in runtime_variants().items():
        command = "serve" if variant.command is None else None
        served = variant_service(variant, name="m", mount_destination="/models", command=command)
        assert served.health.path.startswith("/"), name
        assert "{model" not in served.command
    with pytest.raises(InvalidInput, match="vllm"):
        variant_named("no-such")
    with pytest.raises(InvalidInput, match="startup command"):
        variant_service(variant_named("custom"), name="m", mount_destination="/models", command=None)


def test_ports() -> None:
    served = ServedModel(name="m", path="/models", command="x")
    assert 20_000 <= port_of(served, ENDPOINT) < 32_000
    assert port_of(ServedModel(name="m", path="/models", command="x", port=8000), ENDPOINT) == 8000
    assert with_port("a {port} ${port} {port}", 1) == "a 1 ${port} 1"
