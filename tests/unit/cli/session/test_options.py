import click
import pytest

from ai.backend.cli.framework.params import pair
from ai.backend.cli.session.options import Creation, parse_mount, take_creation
from ai.backend.client.config import APIConfig
from ai.backend.client.func.creation import creation_call


def test_pairs() -> None:
    assert pair("A=b=c") == ("A", "b=c")
    assert pair("A=") == ("A", "")
    for text in ("A", "=b", ""):
        with pytest.raises(click.BadParameter):
            pair(text)


def test_options_in_the_words_of_the_sdk() -> None:
    options = Creation(name="mine", mounts=("data", "model:/m"), resources={"cpu": "1"}).options(max_wait=3)
    assert (options["name"], options["max_wait"], options["enqueue_only"]) == ("mine", 3, False)
    assert options["mounts"] == ["data", "model"]
    assert options["mount_map"] == {"model": "/m"}


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
    config = APIConfig(endpoint="http://127.0.0.1", access_key="A", secret_key="S")
    call = creation_call(config, "python", **Creation(mounts=("data::ro", "more")).options())
    assert call.json["config"]["mounts"] == ["data", "more"]
    assert call.json["config"]["mount_options"] == {"data": {"permission": "ro"}}
    plain = creation_call(config, "python", **Creation(mounts=("more",)).options())
    assert "mount_options" not in plain.json["config"], "servers that do not know them are not bothered"


def test_variants_come_to_the_wire() -> None:
    config = APIConfig(endpoint="http://127.0.0.1", access_key="A", secret_key="S")
    wanted = ("nvidia::compute_capability::8.0", "cuda::model::NVIDIA L4")
    call = creation_call(config, "python", **Creation(variants=wanted).options())
    assert call.json["config"]["variant_requirements"] == list(wanted)
    plain = creation_call(config, "python", **Creation().options())
    assert "variant_requirements" not in plain.json["config"], "servers that do not know it are not bothered"


def test_a_made_up_name_is_a_legal_one() -> None:
    from ai.backend.common.names import check_session_name

    name = Creation().options()["name"]
    assert name is not None
    assert check_session_name(name) != Creation().options()["name"]


def test_taking_the_options_leaves_the_rest() -> None:
    given = {"name": "mine", "tag": None, "code": "1"}
    assert take_creation(given) == Creation(name="mine")
    assert given == {"code": "1"}


def test_when_and_how_long_reaches_the_wire() -> None:
    config = APIConfig(endpoint="http://localhost", access_key="a", secret_key="s")
    asked = Creation(type_="batch", startup_command="./train", batch_timeout="2h", starts_at="1h", priority=3)
    body = creation_call(config, "python", **asked.options()).json
    assert body is not None
    told = {name: body[name] for name in ("type", "startupCommand", "batchTimeout", "starts_at", "priority")}
    assert told == {
        "type": "batch",
        "startupCommand": "./train",
        "batchTimeout": "2h",
        "starts_at": "1h",
        "priority": 3,
    }
    plain = creation_call(config, "python", **Creation().options()).json
    assert plain is not None
    assert "batchTimeout" not in plain
