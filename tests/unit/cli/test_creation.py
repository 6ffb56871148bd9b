import click
import pytest

from ai.backend.cli.creation import Creation, pair, take_creation


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


def test_a_made_up_name_is_a_legal_one() -> None:
    from ai.backend.common.names import check_session_name

    name = Creation().options()["name"]
    assert name is not None
    assert check_session_name(name) != Creation().options()["name"]


def test_taking_the_options_leaves_the_rest() -> None:
    given = {"name": "mine", "tag": None, "code": "1"}
    assert take_creation(given) == Creation(name="mine")
    assert given == {"code": "1"}
