from pathlib import Path
from typing import Any

import click
import pytest

from ai.backend.cli.framework.lazy import LeafCommand
from ai.backend.cli.framework.params import parse_pair
from ai.backend.cli.session.options import create_options_of, creation_options, parse_mount
from ai.backend.client.config import APIConfig
from ai.backend.client.func.creation import CreateOptions, creation_call


def test_pairs() -> None:
    assert parse_pair("A=b=c") == ("A", "b=c")
    assert parse_pair("A=") == ("A", "")
    for text in ("A", "=b", ""):
        with pytest.raises(click.BadParameter):
            parse_pair(text)


def creation(*arguments: str) -> CreateOptions:
    """Returns the creation that a command line asks for."""
    parsed: list[CreateOptions] = []

    @click.command(cls=LeafCommand)
    @creation_options
    def command(**options: Any) -> None:
        parsed.append(create_options_of(options))

    command.main(list(arguments), standalone_mode=False)
    return parsed[0]


def body(*arguments: str) -> Any:
    config = APIConfig(endpoint="http://127.0.0.1", access_key="A", secret_key="S")
    return creation_call(config, "python", **creation(*arguments)).json


def test_options_in_the_words_of_the_sdk() -> None:
    options = creation("-t", "mine", "-m", "data", "-m", "model:/m", "-r", "cpu=1", "-e", "A=b", "--preopen", "1,2")
    assert (options["name"], options["resources"], options["envs"]) == ("mine", {"cpu": "1"}, {"A": "b"})
    assert options["mounts"] == ["data", "model"]
    assert options["mount_map"] == {"model": "/m"}
    assert options["preopen_ports"] == (1, 2)
    assert set(options) <= set(CreateOptions.__annotations__)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("data", ("data", "", "")),
        ("data:/workspace", ("data", "/workspace", "")),
        ("data:/workspace:ro", ("data", "/workspace", "ro")),
        ("data::ro", ("data", "", "ro")),
        ("My Data", ("My Data", "", "")),
        ("type=bind,source=data,target=/w,perm=rw", ("data", "/w", "rw")),
        ("artifact:acme/tiny", ("artifact:acme/tiny", "", "")),
        ("artifact:acme/tiny@v1:/models", ("artifact:acme/tiny@v1", "/models", "")),
        ("artifact:tiny::ro", ("artifact:tiny", "", "ro")),
    ],
)
def test_mounts_in_both_spellings(text: str, parsed: tuple[str, str, str]) -> None:
    assert parse_mount(text) == parsed


@pytest.mark.parametrize(
    "text", ["", ":x", "artifact:", "data:/w:xx", "source=data,owner=me", "type=volume,source=data", "target=/w"]
)
def test_what_is_no_mount(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_mount(text)


def test_permissions_of_mounts_come_to_the_wire() -> None:
    config = body("-m", "data::ro", "-m", "more")["config"]
    assert config["mounts"] == ["data", "more"]
    assert config["mount_options"] == {"data": {"permission": "ro"}}
    assert "mount_options" not in body("-m", "more")["config"], "servers that do not know them are not bothered"


def test_device_requests_come_to_the_wire_in_their_order() -> None:
    alternatives = ['model == "H100"', "memory >= 40g && compute_capability >= 8.0"]
    config = body("--device-request", alternatives[0], "--device-request", alternatives[1])["config"]
    assert config["device_requests"] == alternatives
    assert "device_requests" not in body()["config"], "servers that do not know it are not bothered"


def test_options_of_plugins_come_to_the_wire() -> None:
    said = ["cuda.sharing=mps", "cuda.threads=4", 'fpga.image="4"', "cuda.capabilities=[1,2]"]
    config = body(*(word for text in said for word in ("--plugin-option", text)))["config"]
    assert config["plugin_options"] == {
        "cuda": {"sharing": "mps", "threads": 4, "capabilities": [1, 2]},
        "fpga": {"image": "4"},
    }
    assert "plugin_options" not in body()["config"], "servers that do not know it are not bothered"


@pytest.mark.parametrize("text", ["cuda", "cuda=1", "cuda.=1", ".a=1", "cuda.a"])
def test_what_is_no_option_of_a_plugin(text: str) -> None:
    with pytest.raises(click.BadParameter):
        body("--plugin-option", text)


def test_variants_come_to_the_wire() -> None:
    variants = ["nvidia::compute_capability::8.0", "cuda::model::NVIDIA L4"]
    config = body("--variant", variants[0], "--variant", variants[1])["config"]
    assert config["variant_requirements"] == variants
    assert "variant_requirements" not in body()["config"], "servers that do not know it are not bothered"


def test_a_made_up_name_is_a_legal_one() -> None:
    from ai.backend.common.names import check_session_name

    name = creation()["name"]
    assert name is not None
    assert check_session_name(name) != creation()["name"]


def test_a_script_is_read(tmp_path: Path) -> None:
    (tmp_path / "setup.sh").write_text("echo")
    assert body("--bootstrap-script", str(tmp_path / "setup.sh"))["bootstrap_script"] == "echo"


def test_when_and_how_long_reaches_the_wire() -> None:
    config = APIConfig(endpoint="http://127.0.0.1", access_key="A", secret_key="S")
    options = create_options_of(
        {"type_": "batch", "startup_command": "./train", "batch_timeout": "2h", "starts_at": "1h", "priority": 3}
    )
    sent = creation_call(config, "python", **options).json
    assert sent is not None
    expected = {"type": "batch", "startupCommand": "./train", "batchTimeout": "2h", "starts_at": "1h", "priority": 3}
    assert {name: sent[name] for name in expected} == expected
    assert "batchTimeout" not in body()
