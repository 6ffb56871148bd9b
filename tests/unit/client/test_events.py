from ai.backend.client.events import Event, Parser


def parse(*lines: str) -> list[Event]:
    parser = Parser()
    return [event for line in lines if (event := parser.feed(line)) is not None]


def test_an_event_with_everything() -> None:
    assert parse(": comment", "event: started", "id: 7", "data: {", "data: }", "") == [Event("started", "{\n}", "7")]


def test_fields_without_space_colon_or_name() -> None:
    assert parse("data:x", "") == [Event("message", "x")]
    assert parse("data", "") == [Event("message", "")]
    assert parse("event: nothing", "", "data: a", "") == [Event("message", "a")]
    assert parse("unknown: x", "data: a: b", "") == [Event("message", "a: b")]


def test_the_last_id_stays_and_retry_is_taken() -> None:
    parser = Parser()
    told = [parser.feed(line) for line in ("id: 3", "data: a", "", "retry: 250", "retry: soon", "data: b", "")]
    assert told[-1] == Event("message", "b", "3")
    assert (parser.last_id, parser.retry_s) == ("3", 0.25)


def test_data_that_is_no_object_is_empty() -> None:
    assert Event("x", "[1]").data == {}
    assert Event("x", "no").data == {}
    assert Event("x", '{"a": 1}').data == {"a": 1}
