import pytest

from tests.support.transcripts import Example, examples, matches

PAGE = """
# A page
```console
$ echo one
one
$ cat <<END
> two
>
> three
> END
two

three
```
text, and a block that is not executed
```
$ echo never
```
```console
$ true
```
"""


def test_examples_are_found_in_order_with_what_they_print() -> None:
    assert list(examples(PAGE)) == [
        Example(4, "echo one", "one"),
        Example(6, "cat <<END\ntwo\n\nthree\nEND", "two\n\nthree"),
        Example(20, "true", ""),
    ]


@pytest.mark.parametrize(
    ("expected", "printed", "verdict"),
    [
        ("", "", True),
        ("", "surprise", False),
        ("hello", "hello\n", True),
        ("hello", "hello\nworld\n", False),
        ("id ... RUNNING", "id 1234 RUNNING", True),
        ("id ... RUNNING", "id 1234 PENDING", False),
        ("...\nlast", "a\nb\nlast\n", True),
        ("...\nlast", "a\nlast\nb\n", False),
        ("first\n...", "first\n", True),
        ("a.b", "axb", False),
    ],
)
def test_what_matches(expected: str, printed: str, verdict: bool) -> None:
    assert matches(expected, printed) is verdict
